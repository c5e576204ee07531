package cluster_test

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/kubeadm"
)

// followedByKubeadm are the documents' commands that TestKubeadm runs.
var followedByKubeadm = []string{
	"from CoreDNS", "to CoreDNS", "Deployment coredns", "Deployment coredns, back", "from kube-proxy", "to kube-proxy",
	"from kubeadm", "after kubeadm upgrade", "to kubeadm",
}

// TestKubeadm begins with a cluster as kubeadm leaves it. It takes every way of the documents to Fairway and back, under
// load, and upgrades the cluster by kubeadm's own functions.
func TestKubeadm(t *testing.T) {
	first(t, 1)
	l := newLab(t)
	l.run("up", "--like", "kubeadm", "--nodes", "1", "--api-port", strconv.Itoa(l.port), "--proxy-mode", "nftables",
		"--kube-proxy", built.kubeProxy, "--cni-plugins", filepath.Join(filepath.Dir(built.lab), "cni-plugins"),
		"--image", built.image, "--images-dir", built.images)
	u := undoIn(l)
	u.plainCNI = true
	t.Run("by hand", func(t *testing.T) { u.in(t).byHand() })
	t.Run("fairway install", func(t *testing.T) { u.in(t).installOverKubeProxy() })
	t.Run("kubeadm upgrade", func(t *testing.T) { u.in(t).kubeadmUpgrade() })
	for _, name := range followedByKubeadm {
		if !u.followed[name] {
			t.Errorf("TestKubeadm does not run the commands %q", name)
		}
	}
}

// byHand replaces kube-proxy and CoreDNS by Fairway and goes back, with the commands of deploy/README.md and docs/dns.md.
func (u *undo) byHand() {
	const uid = "kubectl -n kube-system get service kube-dns -o jsonpath={.metadata.uid}"
	before := u.shell(uid)
	u.eventually("table ip kube-proxy", "node", "1", "--", "nft", "list", "tables")
	u.overlay("deploy", "replace-kube-proxy")
	u.follow("from kube-proxy")
	u.shell("kubectl -n kube-system wait --for=delete pod -l k8s-app=kube-proxy --timeout=60s")
	u.answers("by the agent")
	u.follow("from CoreDNS")
	u.answers("ours")
	u.inItsDeployment()
	u.follow("to CoreDNS")
	u.answers("CoreDNS")
	if after := u.shell(uid); after != before {
		u.Errorf("the Service kube-dns was %s and is %s", before, after)
	}
	u.follow("to kube-proxy")
	u.answers("by kube-proxy")
	out := u.run("node", "1", "--", "nft", "list", "tables")
	if strings.Contains(out, "fairway") || !strings.Contains(out, "table ip kube-proxy") {
		u.Errorf("the node has\n%s", out)
	}
}

// inItsDeployment puts Fairway's program into the Deployment coredns and goes back, as docs/dns.md describes. kubeadm
// takes the image's tag for a version of CoreDNS.
func (u *undo) inItsDeployment() {
	const scale, container = "kubectl -n kube-system scale deployment coredns --replicas ", "kubectl -n kube-system get deployment coredns -o jsonpath={.spec.template.spec.containers[0]}"
	before := u.shell(container)
	u.shell(scale + "1")
	u.follow("Deployment coredns")
	u.says(u.shell(container), "fairway-net/fairway:"+u.image, "/etc/coredns/Corefile")
	u.answers("our program in the Deployment coredns")
	if _, err := kubeadm.Plan(u.client()); err == nil {
		u.Error("kubeadm's checks know Fairway's tag")
	}
	if version, err := kubeadm.Plan(u.client(), "CoreDNSUnsupportedPlugins", "CoreDNSMigration"); err != nil || version != u.image {
		u.Errorf("without two of kubeadm's checks: %q, %v", version, err)
	}
	u.follow("Deployment coredns, back")
	if now := u.shell(container); now != before {
		u.Errorf("the container of coredns was %s\nand is %s", before, now)
	}
	u.answers("CoreDNS")
	u.shell("kubectl -n kube-system scale deployment fairway-dns --replicas 2; " + scale + "0")
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

// loadService starts a load at the Service loaded, from a client outside and from the node.
func (u *undo) loadService(externalIPs ...string) *load {
	u.Helper()
	at := fabric.Plan{Family: fabric.IPv4}.Node(1)[0].Addr().String()
	u.input(strings.ReplaceAll(loaded, "NODE", at), "kubectl", "apply", "-f", "-")
	list, err := json.Marshal(externalIPs)
	if err != nil {
		u.Fatal(err)
	}
	u.run("kubectl", "patch", "service", "loaded", "-p", `{"spec":{"externalIPs":`+string(list)+`}}`)
	for _, a := range externalIPs {
		// A SYN before that stays untranslated in conntrack for two minutes, and with it a later connection from its port.
		u.eventually(a+" . tcp . 80", "node", "1", "--", "nft", "list", "map", "ip", "kube-proxy", "service-ips")
	}
	ways := map[string]string{at + ":30707": fabric.Client, "10.96.7.7:80": fabric.NodeName(1)}
	for _, a := range externalIPs {
		ways[a+":80"] = fabric.NodeName(1)
	}
	return u.startLoad(fabric.NodeName(1), at+":8087", ways)
}

// installOverKubeProxy runs `fairway install`, `upgrade`, `rollback` and `uninstall` on a cluster with real kube-proxy
// and CoreDNS, under load. No connection may be lost or refused.
func (u *undo) installOverKubeProxy() {
	load := u.loadService("192.0.2.7")
	defer load.end()
	u.refuses("refused: this ends externalIPs of Services: default/loaded", "install", "--dns", "fairway")
	u.says(u.fairway("install", "--dns", "fairway", "--refuse-external-ips", "false"), "mode nftables", "DaemonSet kube-system/kube-proxy: replaced", "done: revision 1")
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
	u.says(u.replicas("coredns"), "2")
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

// kubeadmUpgrade follows docs/migration.md under load, with kube-proxy's default mode. Between, kubeadm upgrades DNS and
// kube-proxy. Nothing may fail.
func (u *undo) kubeadmUpgrade() {
	u.shell(`kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's/mode: nftables/mode: ""/' | kubectl replace -f -
		kubectl -n kube-system rollout restart daemonset/kube-proxy
		kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=60s`)
	u.eventually("KUBE-SVC-", "node", "1", "--", "iptables-nft-save")
	load := u.loadService()
	defer load.end()
	load.resolve(fabric.NodeName(1))
	u.follow("from kubeadm")
	load.checkpoint("install")
	u.upgradeByKubeadm()
	u.eventually("kube-proxy", "kubectl", "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-proxy", "--field-selector", "status.phase=Running")
	u.eventually("KUBE-SVC-", "node", "1", "--", "iptables-nft-save")
	load.checkpoint("kubeadm upgrade")
	u.follow("after kubeadm upgrade")
	if out := u.run("kubectl", "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-proxy", "-o", "name"); out != "" {
		u.Errorf("after fairway upgrade, kube-proxy runs: %s", out)
	}
	load.checkpoint("fairway upgrade")
	u.follow("to kubeadm")
	load.checkpoint("uninstall")
	u.says(u.replicas("coredns"), "2")
	u.eventually("KUBE-SVC-", "node", "1", "--", "iptables-nft-save")
	if out := u.run("node", "1", "--", "nft", "list", "tables"); strings.Contains(out, "fairway") {
		u.Errorf("after uninstall the node has\n%s", out)
	}
}

// upgradeByKubeadm does what `kubeadm upgrade plan` and `apply` do with DNS and kube-proxy. kubeadm finds only its own
// Deployment, and leaves it at 0 replicas. The label that kubeadm looks for stops it.
func (u *undo) upgradeByKubeadm() {
	u.Helper()
	client := u.client()
	const label = "kubectl -n kube-system label deployment fairway-dns k8s-app"
	u.shell(label + "=kube-dns")
	if _, err := kubeadm.Plan(client); err == nil {
		u.Error("kubeadm's checks accept two Deployments with the label")
	}
	u.shell(label + "-")
	cluster, err := kubeadm.Fetch(client)
	if err != nil {
		u.Fatal(err)
	}
	version, err := kubeadm.Plan(client)
	if err != nil || !strings.HasSuffix(cluster.DNSImage(), ":"+version) {
		u.Errorf("kubeadm upgrade plan: CoreDNS %q, %v", version, err)
	}
	if err := cluster.Apply(client); err != nil {
		u.Errorf("kubeadm upgrade apply: %v", err)
	}
	u.says(u.replicas("coredns"), "0")
}

// replicas returns the replicas of a Deployment.
func (u *undo) replicas(name string) string {
	u.Helper()
	return u.run("kubectl", "-n", "kube-system", "get", "deployment", name, "-o", "jsonpath={.spec.replicas}")
}

// client returns a client of the cluster's administrator.
func (u *undo) client() kubernetes.Interface {
	u.Helper()
	_, client, err := apiclient.New(filepath.Join(u.lab.dir(), "kubeconfig"))
	if err != nil {
		u.Fatal(err)
	}
	return client
}
