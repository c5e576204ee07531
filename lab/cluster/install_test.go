package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// followedByInstall are the documents' commands that TestInstall runs.
var followedByInstall = []string{
	"from CoreDNS", "to CoreDNS", "Deployment coredns", "Deployment coredns, back", "from kube-proxy", "to kube-proxy",
}

// TestInstall installs and removes Fairway with `fairway install` and its related commands. It does so on an empty
// cluster, and on a cluster with CoreDNS and kube-proxy, with the documents' commands.
func TestInstall(t *testing.T) {
	first(t, 1)
	u := newUndo(t)
	t.Run("install", func(t *testing.T) { u.in(t).install() })
	t.Run("CoreDNS", func(t *testing.T) { u.in(t).coreDNS() })
	t.Run("kube-proxy", func(t *testing.T) { u.in(t).kubeProxy() })
	t.Run("install over kube-proxy", func(t *testing.T) { u.in(t).installOverKubeProxy() })
	for _, name := range followedByInstall {
		if !u.followed[name] {
			t.Errorf("TestInstall does not run the commands %q", name)
		}
	}
}

// fairway runs the program as the cluster's administrator.
func (u *undo) fairway(args ...string) string {
	u.Helper()
	out, err := u.tryFairway(args...)
	if err != nil {
		u.Fatalf("fairway %s: %v:\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (u *undo) tryFairway(args ...string) (string, error) {
	cmd := exec.CommandContext(u.Context(), built.fairway, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(u.lab.dir(), "kubeconfig"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// refuses fails the test unless the program refuses the command with a text that contains want.
func (u *undo) refuses(want string, args ...string) {
	u.Helper()
	out, err := u.tryFairway(args...)
	if err == nil || !strings.Contains(out, want) {
		u.Errorf("fairway %s: %v, want a refusal with %q:\n%s", strings.Join(args, " "), err, want, out)
	}
}

// says fails the test unless text contains each of the lines.
func (u *undo) says(text string, lines ...string) {
	u.Helper()
	for _, want := range lines {
		if !strings.Contains(text, want) {
			u.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// install installs and removes Fairway with `fairway install` and its related commands, on an empty cluster.
func (u *undo) install() {
	plan := fabric.Plan{Family: fabric.IPv4}
	pods := "--cluster-cidr=" + plan.Pods()[0].String()
	u.says(u.fairway("install", pods, "--dry-run"), "API server   "+plan.APIServer(), "pod network  Fairway's",
		"create  DaemonSet kube-system/fairway-agent", "nothing was changed")
	u.same()
	u.says(u.fairway("install", pods), "done: revision 1")
	u.there("nftables")
	u.answers("by Fairway")
	u.says(u.fairway("upgrade", "--proxy-mode", "userspace", "--dry-run"), "data.PROXY_MODE: nftables -> userspace", "same    Service kube-system/kube-dns")
	u.says(u.fairway("upgrade", "--proxy-mode", "userspace"), "done: revision 2")
	u.there("userspace")
	u.says(u.fairway("rollback"), "back to revision 1", "done: revision 3")
	u.there("nftables")
	u.says(u.fairway("uninstall"), "nothing is left on the nodes")
	u.same()
}

// loaded is a Service with a server on the node as its endpoint.
const loaded = `
apiVersion: v1
kind: Service
metadata: {name: loaded}
spec: {type: NodePort, clusterIP: 10.96.7.7, ports: [{port: 80, nodePort: 30707}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: loaded, labels: {kubernetes.io/service-name: loaded}}
addressType: IPv4
ports: [{port: 8087}]
endpoints: [{addresses: ["NODE"], nodeName: node-1, conditions: {ready: true}}]
`

// installOverKubeProxy runs `fairway install`, `upgrade`, `rollback` and `uninstall` on a cluster with real kube-proxy
// and CoreDNS, under load. No connection may be lost or refused.
func (u *undo) installOverKubeProxy() {
	plan := fabric.Plan{Family: fabric.IPv4}
	at := plan.Node(1)[0].Addr()
	u.input(strings.ReplaceAll(loaded, "NODE", at.String()), "kubectl", "apply", "-f", "-")
	load := u.startLoad(fabric.NodeName(1), at.String()+":8087", map[string]string{
		fabric.Client: at.String() + ":30707", fabric.NodeName(1): "10.96.7.7:80",
	})
	defer load.end()
	u.says(u.fairway("install", "--dns", "fairway", "--pod-network", "routes"), "mode nftables", "DaemonSet kube-system/kube-proxy: replaced", "done: revision 1")
	load.checkpoint("install")
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out := u.run("node", "1", "--", "nft", "list", "tables")
		if !strings.Contains(out, "kube-proxy") && strings.Contains(out, "table inet fairway\n") {
			break
		}
		if time.Now().After(end) {
			u.Fatalf("a minute after install the node has\n%s", out)
		}
	}
	u.answers("by Fairway")
	u.settings(load)
	u.says(u.fairway("upgrade", "--proxy-mode", "iptables"), "done: revision 2")
	load.checkpoint("upgrade")
	u.there("iptables")
	u.says(u.fairway("rollback"), "done: revision 3")
	load.checkpoint("rollback")
	u.there("nftables")
	u.says(u.fairway("uninstall"), "nothing is left on the nodes")
	load.checkpoint("uninstall")
	u.answers("by CoreDNS")
	if out := u.run("node", "1", "--", "nft", "list", "tables"); strings.Contains(out, "fairway") || !strings.Contains(out, "table ip kube-proxy") {
		u.Errorf("after uninstall the node has\n%s", out)
	}
	u.says(u.run("kubectl", "-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.spec.replicas}"), "2")
	u.run("kubectl", "delete", "service/loaded", "endpointslice/loaded")
}

// settings changes the ConfigMap by hand. Agents apply the valid settings and report the others.
func (u *undo) settings(load *load) {
	u.Helper()
	patch := func(mode string) {
		u.run("kubectl", "-n", "kube-system", "patch", "configmap", "fairway-agent", "-p", `{"data":{"PROXY_MODE":"`+mode+`"}}`)
		// The kubelet updates a mounted ConfigMap when it syncs the pod. A change of the pod triggers a sync.
		u.run("kubectl", "-n", "kube-system", "annotate", "--overwrite", "pod", "-l", "k8s-app=fairway-agent", "look="+mode)
	}
	patch("none-such")
	u.eventually("SettingsRefused", "kubectl", "get", "events", "-A")
	load.checkpoint("a bad setting")
	u.there("nftables")
	patch("iptables")
	u.eventually("table inet fairway-iptables", "node", "1", "--", "nft", "list", "tables")
	load.checkpoint("a setting")
}
