package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// balancedService has an address of the lab's pool. Its server is on node-1.
const balancedService = `
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced, labels: {kubernetes.io/service-name: balanced}}
addressType: IPv4
ports: [{port: 8088}]
endpoints: [{addresses: ["NODE"], nodeName: node-1, conditions: {ready: true}}]
`

// anotherBalancer is what `fairway install` knows MetalLB by.
const anotherBalancer = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: speaker, namespace: metallb-system, labels: {app: metallb}}
spec:
  selector: {matchLabels: {app: metallb}}
  template:
    metadata: {labels: {app: metallb}}
    spec: {nodeSelector: {never: here}, containers: [{name: speaker, image: httpd}]}
`

// TestLosses changes a cluster whose only proxy, DNS, pod network and load balancer are Fairway's, while clients send 200
// requests a second. A command that would end something refuses beforehand, and no request fails.
func TestLosses(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2")...)
	u := undoIn(l)
	u.run("kubectl", "run", "shop", "--image=httpd")
	u.run("kubectl", "wait", "--for=condition=Ready", "pod/shop", "--timeout=60s")
	load, address := u.loadBalanced()
	defer load.end()
	load.resolve(fabric.NodeName(2))

	u.says(u.fairway("install"), "components   load-balancer", "done: revision 1") // it takes over what the lab has made
	load.checkpoint("install")
	if out := u.run("kubectl", "get", "service", "balanced", "-o", "jsonpath={.metadata.finalizers}"); !strings.Contains(out, "load-balancer-cleanup") {
		u.Errorf("after install the Service has the finalizers %s", out)
	}

	const ends = "refused: this ends "
	u.refuses(ends+"names, because Fairway's DNS is the only one: default/shop", "upgrade", "--dns", "none")
	u.refuses(ends+"the pod network, so that pods cannot be deleted and new pods do not start: default/shop", "upgrade", "--pod-network", "none")
	u.refuses(ends+"announcements of load balancers' addresses: default/balanced", "upgrade", "--without-component", "load-balancer")
	u.refuses("addresses of Services, because no kube-proxy is here: default/balanced", "uninstall")
	u.input(anotherBalancer, "kubectl", "apply", "-f", "-")
	u.refuses("MetalLB gives addresses to Services of type LoadBalancer, too", "upgrade", "--component", "load-balancer")
	u.run("kubectl", "-n", "metallb-system", "delete", "daemonset", "speaker")
	load.checkpoint("refused")

	u.run("kubectl", "-n", "metallb-system", "delete", "ipaddresspools", "--all")
	load.goOn("the pool is gone")

	u.says(u.fairway("upgrade", "--proxy-mode", "iptables"), "done: revision 2")
	load.checkpoint("upgrade")
	u.says(u.fairway("rollback"), "done: revision 3")
	load.checkpoint("rollback")

	holder, other := u.holder(), ""
	u.says(u.fairway("drain", holder), "node "+holder+" announces no Service")
	load.goOn("drain")
	if other = u.holder(); other == holder {
		u.Errorf("after drain, %s still announces the address", holder)
	}
	u.refuses("refused: no other node may announce default/balanced ("+address+")", "drain", other)
	load.checkpoint("no drain of the last node")
	u.fairway("drain", holder, "--undo")
	load.goOn("the drain is undone")
}

// holder returns the node that announces the Service balanced.
func (u *undo) holder() string {
	u.Helper()
	return strings.TrimSpace(u.run("kubectl", "-n", "metallb-system", "get", "servicel2statuses", "-o", "jsonpath={.items[0].status.node}"))
}

// goOn is a checkpoint after some more seconds.
func (l *load) goOn(what string) {
	l.u.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
	}
	l.checkpoint(what)
}

// loadBalanced starts a load at the Service balanced, from a client outside and from a node.
func (u *undo) loadBalanced() (load *load, address string) {
	u.Helper()
	at := fabric.Plan{Family: fabric.IPv4}.Node(1)[0].Addr().String()
	u.input(strings.ReplaceAll(balancedService, "NODE", at), "kubectl", "apply", "-f", "-")
	address = strings.TrimSpace(u.eventually("192.168.49.", "kubectl", "get", "service", "balanced", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"))
	return u.startLoad(fabric.NodeName(1), at+":8088", map[string]string{
		address + ":80": fabric.Client, u.clusterIP("balanced") + ":80": fabric.NodeName(2),
	}), address
}

// clusterIP returns the ClusterIP of a Service.
func (u *undo) clusterIP(service string) string {
	u.Helper()
	return strings.TrimSpace(u.run("kubectl", "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"))
}
