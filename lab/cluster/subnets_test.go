package cluster_test

import (
	"net"
	"strings"
	"testing"
)

// subnetsManifest is a pod on each node with a shell beside its server, and a Service of the pod in the second subnet.
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

// TestSubnets: two nodes in two subnets, with a router between that knows nothing of pods. Pods reach each other through
// the tunnel, in both families; so does a Service, from a pod, from outside, and through the API server.
func TestSubnets(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--dual-stack", "--subnets", "2", "--pod-network", "auto")...)
	l.input(subnetsManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/near", "pod/far", "--timeout=120s")
	if out := l.run("node", "2", "--", "ip", "-o", "-4", "address", "show", "dev", "eth0"); !strings.Contains(out, "192.168.50.3/24") {
		t.Errorf("node 2 has %s", out)
	}
	const works = "It works!"
	get := func(pod, host string) {
		t.Helper()
		l.eventually(works, "kubectl", "exec", pod, "-c", "box", "--", "curl", "-sSg", "-m", "5", "http://"+net.JoinHostPort(host, "80")+"/")
	}
	ips := func(pod string) []string {
		return strings.Fields(l.run("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
	}
	far, near := ips("far"), ips("near")
	if len(far) != 2 || len(near) != 2 {
		t.Fatalf("the pods' addresses are %v and %v, want two each", far, near)
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
	l.eventually("dev fairway", "node", "1", "--", "ip", "route", "get", far[0])
	l.refused("different subnets", "fault", "node", "1", "partition", "--from", "2")
}
