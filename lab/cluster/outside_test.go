package cluster_test

import (
	"strings"
	"testing"
)

// outsideManifest is a pod with host ports, on all addresses and on one, and a Service of type LoadBalancer. The
// Service has a second endpoint on another node.
const outsideManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: node-1
  containers:
  - name: web
    image: httpd
    imagePullPolicy: IfNotPresent
    ports: [{containerPort: 80, hostPort: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: local}
spec:
  nodeName: node-1
  containers:
  - name: web
    image: httpd
    imagePullPolicy: IfNotPresent
    ports: [{containerPort: 80, hostPort: 81, hostIP: 127.0.0.1}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, labels: {app: web}}
spec:
  nodeName: node-2
  containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80}]
`

// TestFromOutside checks the connections between the cluster and a client outside, in both families:
//   - The client reaches a Service at addresses that the controller gave and a speaker announces.
//   - The client reaches a pod at its host ports. A process of the node reaches host ports on loopback addresses.
//   - A pod reaches the client with the address of a Service.
//   - No node sends new connections to a node that its peers do not hear, until they hear it again.
func TestFromOutside(t *testing.T) {
	beside(t, 3)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "3", "--dual-stack", "--load-balancer", "l2", "--egress-addresses")...)
	l.input(outsideManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/web", "pod/web-2", "pod/local", "--timeout=120s")
	const works = "It works!"
	get := func(from []string, args ...string) []string {
		return append(append(from, "--", "curl", "-sS", "-g", "-m", "5"), args...)
	}
	client, node := []string{"client"}, []string{"node", "1"}
	l.eventually("192.168.49.200", "kubectl", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
	for _, at := range []string{"192.168.49.200", "[fd00:49::c8]", "192.168.49.2", "[fd00:49::2]"} {
		l.eventually(works, get(client, "http://"+at+"/")...)
	}
	for _, at := range []string{"127.0.0.1", "[::1]", "192.168.49.2"} {
		l.eventually(works, get(node, "http://"+at+"/")...)
	}
	l.eventually(works, get(node, "http://127.0.0.1:81/")...)
	// As in Kubernetes' own conformance test, without the kubelet's firewall.
	l.eventually(works, get(node, "--interface", "192.168.49.2", "http://127.0.0.1:81/")...)

	l.eventually("default/web on eth0", "kubectl", "-n", "metallb-system", "get", "servicel2statuses", "-o",
		"jsonpath={range .items[*]}{.status.serviceNamespace}/{.status.serviceName} on {.status.interfaces[*].name};{end}")
	l.eventually("nodeAssigned", "kubectl", "get", "events")
	// Before all nodes vote, the first two need each other for a majority.
	for _, n := range []string{"node-1", "node-2", "node-3"} {
		l.eventually(n, "kubectl", "-n", "metallb-system", "get", "configmap", "fairway-speaker-voters", "-o", "jsonpath={.data}")
	}
	l.testEgress()
	l.testDeadNode()

	l.run("kubectl", "delete", "pod", "web", "local", "--now")
	if rules := l.run("node", "1", "--", "nft", "list", "ruleset"); strings.Contains(rules, "pod/web") || strings.Contains(rules, "fairway-hostports") {
		l.eventually("none", "node", "1", "--", "sh", "-c", "nft list ruleset | grep -e pod/web -e fairway-hostports || echo none")
	}
}

// testDeadNode cuts node 2 off and reconnects it, while its pod is an endpoint.
func (l *lab) testDeadNode() {
	agent := strings.TrimSpace(l.run("kubectl", "-n", "kube-system", "get", "pod", "-l", "k8s-app=fairway-agent", "--field-selector", "spec.nodeName=node-3", "-o", "name"))
	in := []string{"kubectl", "-n", "kube-system", "exec", agent, "--", "fairway"}
	rules := "fairway dump --service default/web -o wide | grep -qF ' " + l.run("kubectl", "get", "pod", "web-2", "-o", "jsonpath={.status.podIP}") + ":80 ' && echo used || echo left out"
	l.eventually("used", "node", "1", "--", "sh", "-c", rules)
	l.run("fault", "node", "2", "link-down")
	for _, n := range []string{"1", "3"} {
		l.eventually("left out", "node", n, "--", "sh", "-c", rules)
	}
	l.eventually("its node is declared dead by its peers", append(in, "explain", "default/web")...)
	l.run("fault", "node", "2", "heal")
	for _, n := range []string{"1", "3"} {
		l.eventually("used", "node", n, "--", "sh", "-c", rules)
	}
}
