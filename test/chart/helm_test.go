//go:build helm

package chart

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/yaml"
)

const (
	helmWait = 3 * time.Minute
	nodes    = 2
)

// A helmLab is a cluster without anything of Fairway, and Helm in front of it.
type helmLab struct {
	*testing.T
	program, name string
	config        *action.Configuration
}

// newHelmLab brings the cluster up, and removes it when the test ends.
func newHelmLab(t *testing.T) *helmLab {
	t.Helper()
	bin := os.Getenv("FAIRWAY_LAB_BIN")
	if bin == "" {
		t.Skip("FAIRWAY_LAB_BIN names no fairway-lab [make test-helm]")
	}
	l := &helmLab{T: t, program: bin, name: fmt.Sprintf("helm-%d", os.Getpid()), config: new(action.Configuration)}
	t.Cleanup(func() { l.lab("down") })
	dir := filepath.Dir(bin)
	l.lab("up", "--nodes", fmt.Sprint(nodes), "--api-port", freePort(t), "--deploy", "", "--load-balancer", "none",
		"--image", filepath.Join(dir, "fairway-image.tar"), "--images-dir", filepath.Join(dir, "images"))
	kubeconfig, namespace := strings.TrimSpace(l.lab("kubeconfig")), "kube-system"
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	if err := l.config.Init(flags, namespace, "secret", t.Logf); err != nil {
		t.Fatal(err)
	}
	return l
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// try runs fairway-lab.
func (l *helmLab) try(args ...string) (string, error) {
	out, err := exec.CommandContext(context.WithoutCancel(l.Context()), l.program, append([]string{"--name", l.name}, args...)...).CombinedOutput()
	return string(out), err
}

func (l *helmLab) lab(args ...string) string {
	l.Helper()
	out, err := l.try(args...)
	if err != nil {
		l.Fatalf("fairway-lab %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// until waits for what fairway-lab says.
func (l *helmLab) until(want string, args ...string) {
	l.Helper()
	l.wait(want, true, args...)
}

// untilNot waits until fairway-lab does not say something.
func (l *helmLab) untilNot(what string, args ...string) {
	l.Helper()
	l.wait(what, false, args...)
}

func (l *helmLab) wait(text string, there bool, args ...string) {
	l.Helper()
	var out string
	for end := time.Now().Add(helmWait); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var err error
		if out, err = l.try(args...); err == nil && regexp.MustCompile(text).MatchString(out) == there {
			return
		}
	}
	l.Fatalf("fairway-lab %s: waited for %q (%v), but it says\n%s", strings.Join(args, " "), text, there, out)
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// upgrade is `helm upgrade --reset-then-reuse-values --wait`.
func (l *helmLab) upgrade(c *chart.Chart, text string) {
	l.Helper()
	up := action.NewUpgrade(l.config)
	up.Namespace, up.Wait, up.Timeout, up.ResetThenReuseValues = "kube-system", true, helmWait, true
	r, err := up.RunWithContext(l.Context(), "fairway", c, values(l.T, text))
	if err != nil {
		l.Fatalf("helm upgrade with %q: %v", text, err)
	}
	if r.Info.Status != release.StatusDeployed {
		l.Fatalf("helm upgrade with %q: %s", text, r.Info.Status)
	}
}

// answers checks that a Service answers a client outside of the cluster by each node, and DNS a pod.
func (l *helmLab) answers() {
	l.Helper()
	port := strings.TrimSpace(l.lab("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"))
	for n := range nodes {
		l.until("200", "client", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "5", fmt.Sprintf("http://192.168.49.%d:%s/", 2+n, port))
	}
	l.until(`10\.96\.0\.1\b`, "kubectl", "exec", "asks", "--", "nslookup", "kubernetes.default.svc.cluster.local")
}

// TestHelm installs, changes, rolls back and removes the release by Helm's own actions in a cluster that has neither
// proxy nor pod network nor DNS.
func TestHelm(t *testing.T) {
	l, c := newHelmLab(t), load(t)
	image, err := os.ReadFile(filepath.Join(filepath.Dir(l.program), "fairway-image.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tag := regexp.MustCompile(`newTag: (\S+)`).FindSubmatch(image)
	if tag == nil {
		t.Fatalf("no tag in\n%s", image)
	}
	install := action.NewInstall(l.config)
	install.ReleaseName, install.Namespace, install.Wait, install.Timeout = "fairway", "kube-system", true, helmWait
	if _, err := install.RunWithContext(t.Context(), c, values(t, `
apiServer: https://192.168.49.254:6443
clusterCIDR: 10.244.0.0/16
podNetwork: routes
image: {repository: ghcr.io/fairway-net/fairway, tag: `+string(tag[1])+`}
dns: {enabled: true, service: {clusterIPs: [10.96.0.10]}}
`)); err != nil {
		t.Fatalf("helm install: %v", err)
	}
	l.until(`(?m)^node-1 +Ready.*\n^node-2 +Ready`, "kubectl", "get", "nodes", "--no-headers")
	l.lab("kubectl", "create", "deployment", "web", "--image", "nginx", "--replicas", "2")
	l.lab("kubectl", "expose", "deployment", "web", "--port", "80", "--type", "NodePort")
	l.lab("kubectl", "run", "asks", "--image", "gcr.io/kubernetes-e2e-test-images/dnsutils:1.3", "--command", "--", "sleep", "3600")
	l.lab("kubectl", "wait", "--for=condition=Ready", "--timeout=120s", "pod/asks")
	l.answers()

	l.upgrade(c, "proxyMode: iptables")
	l.until(`KUBE-SVC-`, "node", "1", "--", "iptables", "-t", "nat", "-S")
	l.answers()
	back := action.NewRollback(l.config)
	back.Version, back.Wait, back.Timeout = 1, true, helmWait
	if err := back.Run("fairway"); err != nil {
		t.Fatalf("helm rollback: %v", err)
	}
	l.until(`table inet fairway`, "node", "1", "--", "nft", "list", "tables")
	l.answers()

	l.lab("kubectl", "delete", "deployment/web", "service/web", "pod/asks", "--grace-period", "1") // a pod that runs keeps its route
	l.until(`^$`, "kubectl", "get", "pods", "-o", "name")
	l.lab("kubectl", "delete", "deployment", "fairway-dns", "-n", "kube-system", "--cascade=foreground", "--timeout", "120s")
	l.upgrade(c, "cleanup: true")
	if _, err := action.NewUninstall(l.config).Run("fairway"); err != nil {
		t.Fatalf("helm uninstall: %v", err)
	}
	l.nothingLeft()
}

// nothingLeft checks that no object and nothing on a node is left, but for what others made and what Helm keeps on purpose.
func (l *helmLab) nothingLeft() {
	l.Helper()
	for _, kinds := range []string{"daemonsets,deployments,pods,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,secrets", "clusterroles,clusterrolebindings"} {
		l.untilNot("fairway", "kubectl", "get", kinds, "-n", "kube-system", "-o", "name")
	}
	for n := 1; n <= nodes; n++ {
		node := func(args ...string) string {
			out, _ := l.try(append([]string{"node", fmt.Sprint(n), "--"}, args...)...)
			return out
		}
		if out := node("nft", "list", "tables"); strings.Contains(out, "fairway") {
			l.Errorf("tables on node %d:\n%s", n, out)
		}
		if out := node("ls", "/etc/cni/net.d", "/opt/cni/bin"); strings.Contains(out, "fairway") {
			l.Errorf("files on node %d:\n%s", n, out)
		}
		if out := node("ip", "route", "show", "proto", "70"); out != "" {
			l.Errorf("routes on node %d:\n%s", n, out)
		}
	}
}
