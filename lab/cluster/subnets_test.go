package cluster_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// subnetsManifest is a pod on each node with a shell next to its server, and a Service for the pod in the second
// subnet.
const subnetsManifest = `
apiVersion: v1
kind: Pod
metadata: {name: near}
spec:
  nodeName: node-1
  containers:
  - {name: web, image: httpd, imagePullPolicy: IfNotPresent}
  - {name: box, image: curlimages/curl, imagePullPolicy: IfNotPresent, command: [sleep, "3600"]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {app: far}}
spec:
  nodeName: node-2
  containers:
  - {name: web, image: httpd, imagePullPolicy: IfNotPresent}
  - {name: box, image: curlimages/curl, imagePullPolicy: IfNotPresent, command: [sleep, "3600"]}
---
apiVersion: v1
kind: Service
metadata: {name: far}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: far}
  ports: [{port: 80}]
`

// TestSubnets has two nodes in two subnets, with a router between that has no routes to pods. Pods reach each other
// through the tunnel, in both families. Pods, the client outside and the API server reach a Service.
func TestSubnets(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	far := l.subnets("auto")
	l.eventually("dev fairway", "node", "1", "--", "ip", "route", "get", far)
	l.refused("different subnets", "fault", "node", "1", "partition", "--from", "2")
	l.testKeyPolicy()
	l.testNetworkUnavailable()
}

// TestSubnetsBGP is TestSubnets with BIRD as the router, which learns the routes to pods from the nodes. When a node
// falls silent, the router and the other node lose their routes to its pods.
func TestSubnetsBGP(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	far := l.subnets("bgp")
	l.eventually("via 192.168.49.1 dev eth0", "node", "1", "--", "ip", "route", "get", far)
	l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "5", "http://"+far+"/") // the router also has the route for clients outside the cluster
	// The routes survive a restart of agent and speaker.
	l.run("kubectl", "-n", "kube-system", "rollout", "restart", "daemonset/fairway-agent", "daemonset/fairway-speaker")
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/fairway-agent", "--timeout=120s")
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/fairway-speaker", "--timeout=120s")
	l.eventually("It works!", "kubectl", "exec", "near", "-c", "box", "--", "curl", "-sSg", "-m", "5", "http://"+far+"/")

	cidr := netip.PrefixFrom(netip.MustParseAddr(far), 24).Masked().String()
	route := []string{"node", "1", "--", "ip", "route", "show", cidr}
	l.eventually("via 192.168.49.1", route...)
	l.run("fault", "node", "2", "link-down")
	l.eventually("unreachable "+cidr, route...)
	l.eventually("0 routes", "router", "--", "sh", "-c", `echo "$(ip route show `+cidr+` | wc -l) routes"`)
	l.run("fault", "node", "2", "heal")
	l.within(2*time.Minute, "via 192.168.49.1", route...)
	l.eventually("It works!", "kubectl", "exec", "near", "-c", "box", "--", "curl", "-sSg", "-m", "5", "http://"+far+"/")
}

// subnets starts a dual-stack lab of two nodes in two subnets. It lets pods and a Service reach each other in every
// way, and returns the IPv4 address of the pod in the second subnet.
func (l *lab) subnets(podNetwork string) (pod string) {
	l.Helper()
	l.run(l.upArgs("--nodes", "2", "--dual-stack", "--subnets", "2", "--pod-network", podNetwork)...)
	l.input(subnetsManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/near", "pod/far", "--timeout=120s")
	if out := l.run("node", "2", "--", "ip", "-o", "-4", "address", "show", "dev", "eth0"); !strings.Contains(out, "192.168.50.3/24") {
		l.Errorf("node 2 has %s", out)
	}
	const works = "It works!"
	get := func(pod, host string) {
		l.Helper()
		l.eventually(works, "kubectl", "exec", pod, "-c", "box", "--", "curl", "-sSg", "-m", "5", "http://"+net.JoinHostPort(host, "80")+"/")
	}
	ips := func(pod string) []string {
		return strings.Fields(l.run("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
	}
	far, near := ips("far"), ips("near")
	if len(far) != 2 || len(near) != 2 {
		l.Fatalf("the pods' addresses are %v and %v, want two each", far, near)
	}
	for i := range far {
		get("near", far[i])
		get("far", near[i])
	}
	get("near", "far") // by DNS, through its ClusterIP
	for _, addr := range []string{"192.168.49.200", "[fd00:49::c8]"} {
		l.eventually(works, "client", "--", "curl", "-sSg", "-m", "5", "http://"+addr+"/")
	}
	l.eventually(works, "kubectl", "get", "--raw", "/api/v1/namespaces/default/pods/far:80/proxy/")
	return far[0]
}
