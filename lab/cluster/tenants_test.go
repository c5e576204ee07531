package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/test/tenants"
)

// victimManifest is the victim of hostile tenants: a Service with a fixed address. It is younger than the tenants'
// objects.
const victimManifest = `
apiVersion: v1
kind: Service
metadata: {name: bank, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.77.77
  selector: {app: bank}
  ports: [{port: 80, nodePort: 30077}]
`

// victimPods serve the victim's Service and send requests to it. They outlive all tenants.
const victimPods = `
apiVersion: v1
kind: Pod
metadata: {name: bank, labels: {app: bank}}
spec:
  nodeName: node-2
  containers: [{name: bank, image: httpd}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node-1
  containers: [{name: client, image: busybox, command: [sleep, "600"]}]
`

// TestTenants applies every file of test/tenants, one after the other, and asks the victim,
// the API server and the kubelets as before. Each file says in its first line what must
// happen, and in its second which event its author gets.
//
// Then come the sets of package tenants, beside a load: those for which CI has the time, with FAIRWAY_TENANTS=all all.
//
// KUBE_PROXY=/path/to/kube-proxy runs it against that instead of the agent, and prints what
// becomes of the victim (docs/tenants.md has it), without judging it.
func TestTenants(t *testing.T) {
	beside(t, 2)
	files, err := filepath.Glob("../../test/tenants/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files: %v", len(files), err)
	}
	l := newLab(t)
	args := []string{"--nodes", "2", "--load-balancer", "none"} // the manifests set the addresses themselves
	peer, everything := os.Getenv("KUBE_PROXY"), os.Getenv("FAIRWAY_TENANTS") == "all"
	switch {
	case peer != "":
		args = append(args, "--kube-proxy", peer)
	case everything:
		args = append(args, "--network-policy", "--load-balancer", "l2")
	default:
		args = append(args, "--network-policy")
	}
	l.run(append(l.upArgs(args...), "--deploy", l.allowExternalIPs())...)
	if peer == "" {
		t.Run("example", func(t *testing.T) { l.in(t).testExample() })
	}
	l.input(victimPods, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/bank", "pod/client", "--timeout=60s")
	if peer == "" {
		t.Run("weights", func(t *testing.T) { l.in(t).testWeights() })
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			effects := l.in(t).tenant(file, peer == "")
			if peer != "" {
				t.Logf("kube-proxy | %s | %s", name, strings.Join(effects, ", "))
				return
			}
			for _, e := range effects {
				t.Errorf("the tenant has an effect: %s", e)
			}
		})
	}
	if peer != "" {
		return
	}
	other := l.bystander()
	defer other.end()
	for _, s := range tenants.All {
		if s.InCI || everything {
			t.Run("limits-"+s.Name, func(t *testing.T) { l.in(t).atLimits(other, s) })
		}
	}
}

// allowExternalIPs returns a copy of deploy/ without the policy that refuses externalIPs. The agent must refuse the
// rest by itself.
func (l *lab) allowExternalIPs() string {
	l.Helper()
	dir := filepath.Join(l.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS(built.deploy)); err != nil {
		l.Fatal(err)
	}
	file := filepath.Join(dir, "agent", "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		l.Fatal(err)
	}
	changed := strings.Replace(string(text), `REFUSE_EXTERNAL_IPS: "true"`, `REFUSE_EXTERNAL_IPS: "false"`, 1)
	if changed == string(text) {
		l.Fatalf("%s does not refuse externalIPs", file)
	}
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		l.Fatal(err)
	}
	return dir
}

var eventLine = regexp.MustCompile(`(?m)^# event: (\S+)$`)

// tenant applies a file, creates the victim, and returns the failures that follow.
func (l *lab) tenant(file string, judged bool) (effects []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		l.Fatal(err)
	}
	event := eventLine.FindStringSubmatch(string(text))
	if !strings.HasPrefix(string(text), "# ") || event == nil {
		l.Fatalf("%s does not begin with what must happen and its event", file)
	}
	namespace := "tenant-" + strings.TrimSuffix(filepath.Base(file), ".yaml")
	l.run("kubectl", "create", "namespace", namespace)
	l.run("kubectl", "-n", namespace, "create", "-f", file)
	for made := time.Now().Unix(); time.Now().Unix() == made; { // creationTimestamps have seconds
		time.Sleep(20 * time.Millisecond)
	}
	l.input(victimManifest, "kubectl", "create", "-f", "-")
	if judged && event[1] != "-" {
		l.eventually(event[1], "kubectl", "-n", namespace, "get", "events", "-o", "custom-columns=REASON:.reason")
	}
	effects = l.probe()
	l.run("kubectl", "delete", "service", "bank")
	l.run("kubectl", "-n", namespace, "delete", "-f", file)
	l.run("kubectl", "delete", "namespace", namespace, "--wait=false")
	return effects
}

// probe sends several requests each to the victim and the cluster, and returns the failures. The first answer may take
// as long as a new Service takes, and each answer some seconds on a busy machine. A lost packet does not cost more than
// that, so the clients must not have repeated a SYN. The nodes' own counters do not count, because the kubelet probes
// ending pods.
func (l *lab) probe() (failed []string) {
	const tries = 5
	inPod := []string{"kubectl", "exec", "client", "--", "sh", "-c"}
	many := func(command string) string {
		return fmt.Sprintf("for i in $(seq 50); do %[1]s >/dev/null 2>&1 && break; sleep 0.1; done; for i in $(seq %[2]d); do %[1]s; echo; done", command, tries)
	}
	counted := func(command string) string {
		const count = "grep ^TcpExt: /proc/net/netstat; "
		return strings.Replace(many(command), "done; ", "done; "+count, 1) + "; " + count
	}
	for _, p := range []struct {
		what, want string
		argv       []string
	}{
		{"pod to ClusterIP", "It works!", append(inPod, counted("curl -sS -m 5 http://10.96.77.77/"))},
		{"outside to NodePort", "It works!", []string{"client", "--", "sh", "-c", counted("curl -sS -m 5 http://192.168.49.2:30077/")}},
		{"pod to API server", "gitVersion", append(inPod, counted("curl -sSk -m 5 https://10.96.0.1/version"))},
		{"node to API server", "gitVersion", []string{"node", "2", "--", "sh", "-c", many("curl -sSk -m 5 https://192.168.49.254:6443/version")}},
		{"node to another's kubelet", "401", []string{"node", "1", "--", "sh", "-c", many("curl -sk -m 5 -o /dev/null -w %{http_code} https://192.168.49.3:10250/pods")}},
	} {
		out, err := l.try(p.argv...)
		if n := strings.Count(out, p.want); n != tries {
			failed = append(failed, fmt.Sprintf("%s: %d of %d answered", p.what, n, tries))
			l.Logf("%s: %v %.300s", p.what, err, out)
		}
		if repeated := repeatedSYNs(out); len(repeated) > 0 && repeated[0] != repeated[len(repeated)-1] {
			failed = append(failed, fmt.Sprintf("%s: a SYN was lost (TCPSynRetrans %v)", p.what, repeated))
		}
	}
	return failed
}

// repeatedSYNs returns the kernel's counter of repeated SYNs from each copy of /proc/net/netstat in a text.
func repeatedSYNs(text string) (counts []string) {
	column := 0
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "TcpExt:" {
			if i := slices.Index(fields, "TCPSynRetrans"); i > 0 {
				column = i
			} else if column < len(fields) {
				counts = append(counts, fields[column])
			}
		}
	}
	return counts
}

// TestRepeatedSYNs reads the counters.
func TestRepeatedSYNs(t *testing.T) {
	text := "TcpExt: A TCPSynRetrans B\nTcpExt: 1 2 3\nIt works!\nTcpExt: A TCPSynRetrans B\nTcpExt: 7 8 9\n"
	if got := fmt.Sprint(repeatedSYNs(text)); got != "[2 8]" {
		t.Error(got)
	}
}
