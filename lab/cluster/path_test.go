package cluster_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/path"
)

const pathWorld = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers: [{name: cart, image: busybox, command: [sleep, "600"], imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web, on: node-2}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {selector: {on: node-2}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: none, namespace: shop}
spec: {selector: {app: wbe}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: closed, namespace: shop}
spec: {selector: {on: node-2}, ports: [{name: http, port: 80, targetPort: 9999}]}
`

const pathReader = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: shop}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: path-reader}
rules:
- {apiGroups: ["", discovery.k8s.io, networking.k8s.io, policy.networking.k8s.io], resources: [services, endpointslices, pods, nodes, namespaces, networkpolicies, servicecidrs, configmaps, clusternetworkpolicies], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: path-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: path-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: shop}]
`

// asks runs fairway path in namespace shop, and returns its output and exit status.
func (l *lab) asks(kubeconfig string, args ...string) (out string, status int) {
	l.Helper()
	cmd := exec.CommandContext(l.Context(), built.fairway, append([]string{"path", "-n", "shop"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		status = exit.ExitCode()
	case err != nil:
		l.Fatal(err)
	}
	return string(text), status
}

// TestPath: fairway path predicts what a probe shows, for each kind of client and address, and names faults that only a
// cluster has.
func TestPath(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--load-balancer", "none")...)
	l.input(pathWorld, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	config := filepath.Join(l.dir(), "kubeconfig")
	l.run("kubectl", "-n", "shop", "wait", "--for=jsonpath={.endpoints[0].conditions.ready}=true", "endpointslice", "-l", "kubernetes.io/service-name in (web,far,closed)", "--timeout=30s")
	l.pathPairs(config, "198.51.100.7", "svc/web", "node/node-1:30080", "pod/web-2:80")
	l.sentence(config, 0, "seen 1×: delivered", "pod/cart", "svc/web", "--each")
	go l.cmd("kubectl", "-n", "shop", "exec", "cart", "--", "sh", "-c", "sleep 2; wget -qO /dev/null http://web.shop").Run() //nolint:errcheck // the path shows it
	l.sentence(config, 0, "It was the client's own packet", "pod/cart", "svc/web", "--live", "--wait", "20s")
	l.pathFaults(config)
	if left := l.run("node", "node-1", "--", "sh", "-c", "nft list tables; ip link"); strings.Contains(left, "fairway-path") || strings.Contains(left, "fwpath") {
		t.Errorf("a probe has left:\n%s", left)
	}
}

// pathPairs asks for all pairs of clients and destinations, and the pod for a name.
func (l *lab) pathPairs(config, outside string, to ...string) {
	l.Helper()
	var took []time.Duration
	for _, from := range []string{"pod/cart", "node/node-2", "outside:" + outside} {
		ask := to
		if from == "pod/cart" {
			ask = append(slices.Clone(to), "web:80")
		}
		for _, to := range ask {
			begin := time.Now()
			out, status := l.asks(config, from, to, "-o", "json")
			took = append(took, time.Since(begin))
			var p path.Path
			err := json.Unmarshal([]byte(out), &p)
			end := path.Delivered
			if p.Mode["node-1"] == "userspace" && from != "node/node-2" && !strings.HasPrefix(to, "pod/") {
				end = path.Accepted // by the proxy, which calls an endpoint for a whole connection
			}
			if err != nil || status != 0 || p.Verdict.Agree == nil || !*p.Verdict.Agree || p.Verdict.Observed != end || len(p.Findings) > 0 {
				l.Errorf("%s to %s: status %d, %v\n%s", from, to, status, err, out)
				continue
			}
			for _, h := range p.Hops {
				if !h.Agree || h.Observed == nil {
					l.Errorf("%s to %s: hop %+v\n%s", from, to, h, out)
				}
			}
		}
	}
	slices.Sort(took)
	l.Logf("%d paths, median %v, slowest %v", len(took), took[len(took)/2], took[len(took)-1])
	if median := took[len(took)/2]; median > 1500*time.Millisecond {
		l.Logf("the median is above 1.5 s: a busy machine?")
	}
}

// pathFaults provokes faults, and asks for their sentences.
func (l *lab) pathFaults(config string) {
	l.sentence(config, 1, "Nobody answers: selector app=wbe matches no pod", "pod/cart", "svc/none")
	l.sentence(config, 2, "web-2 refuses: nothing listens on 9999, or only on 127.0.0.1.", "pod/cart", "svc/closed")

	l.run("node", "node-2", "--", "nft", "add table ip firewall; add chain ip firewall forward { type filter hook forward priority 10; }; add rule ip firewall forward tcp dport 80 reject")
	l.sentence(config, 2, "Another program's rule ends it: ip firewall forward #2.", "pod/cart", "svc/far")
	l.run("node", "node-2", "--", "nft", "delete table ip firewall")

	l.input(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {matchLabels: {on: node-2}}, policyTypes: [Ingress]}}`, "kubectl", "apply", "-f", "-")
	l.asked(config, 1, "NetworkPolicy shop/deny", "pod/cart", "svc/far")
	l.run("kubectl", "-n", "shop", "delete", "networkpolicy", "deny")
	l.asked(config, 0, "Predicted, and seen", "pod/cart", "svc/far")

	l.sentence(l.readOnly(config), 3, "not proved: your user may not create pods/exec in the agents' namespace, kube-system", "pod/cart", "svc/far")

	l.run("kubectl", "-n", "kube-system", "patch", "ds", "fairway-agent", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"node-1"}}}}}`)
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "ds/fairway-agent", "--timeout=60s")
	l.asked(config, 0, "Not known: no agent runs on node-2", "pod/cart", "svc/far")
	l.sentence(config, 3, "not proved: no agent runs on node-2", "node/node-2", "svc/far")
}

// sentence asks for a path once.
func (l *lab) sentence(config string, status int, want string, args ...string) {
	l.Helper()
	out, got := l.asks(config, args...)
	l.Logf("%s", out)
	if got != status || !strings.Contains(strings.Join(strings.Fields(out), " "), want) || strings.Contains(out, "UnhandledError") {
		l.Errorf("path %v: status %d, want %d and %q\n%s", args, got, status, want, out)
	}
}

// asked asks for a path until the agents have followed a change.
func (l *lab) asked(config string, status int, want string, args ...string) {
	l.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if out, got := l.asks(config, args...); got == status && strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			l.Logf("%s", out)
			return
		}
	}
	l.sentence(config, status, want, args...)
}

// readOnly returns the kubeconfig of a person who may read what a prediction needs, and nothing else.
func (l *lab) readOnly(config string) string {
	l.Helper()
	l.input(pathReader, "kubectl", "apply", "-f", "-")
	token := strings.TrimSpace(l.run("kubectl", "create", "token", "reader", "-n", "shop"))
	text, err := os.ReadFile(config)
	if err != nil {
		l.Fatal(err)
	}
	file := filepath.Join(l.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		l.Fatal(err)
	}
	for _, args := range [][]string{{"set-credentials", "reader", "--token=" + token}, {"set-context", "--current", "--user=reader"}} {
		l.run(append([]string{"kubectl", "--kubeconfig", file, "config"}, args...)...)
	}
	return file
}
