package cluster_test

import (
	"net"
	"slices"
	"strings"
	"time"
)

// alonePods are a server with a probe by the kubelet, a client on the server's node and a client on the other node.
const alonePods = `
apiVersion: v1
kind: Namespace
metadata: {name: alone}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: alone}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: alone, labels: {app: web}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers: [{name: web, image: httpd, readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: alone, labels: {app: client}}
spec: {nodeName: node-1, terminationGracePeriodSeconds: 0, containers: [{name: sleep, image: busybox, command: [sleep, "3600"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: alone, labels: {app: client}}
spec: {nodeName: node-2, terminationGracePeriodSeconds: 0, containers: [{name: sleep, image: busybox, command: [sleep, "3600"]}]}
`

// alonePolicies are policies of the namespace, applied one at a time, with the clients that may reach the server.
var alonePolicies = []struct {
	name, spec      string
	clients, client bool // may the pods, and the client outside the cluster, by the server's node
}{
	{"none", "", true, true},
	{"deny ingress", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}", false, false},
	{"allow clients", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}", true, false},
	{"another port", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{ports: [{port: 8080}]}]}", false, false},
	{"deny egress", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}", false, true},
	{"egress to web", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}]}]}", true, true},
}

// testAlone applies policies and sends requests to a server. They come from the server's node, the other node and
// outside. They go to the server's addresses and to addresses that kube-proxy carries, in both families.
func (l *lab) testAlone() {
	l.input(alonePods, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "-n", "alone", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
	get := func(kind, path string) []string {
		return strings.Fields(l.run("kubectl", "-n", "alone", "get", kind, "web", "-o", "jsonpath="+path))
	}
	targets := append(get("pod", "{.status.podIPs[*].ip}"), get("service", "{.spec.clusterIPs[*]}")...)
	port := get("service", "{.spec.ports[0].nodePort}")[0]
	for _, p := range alonePolicies {
		if p.spec != "" {
			l.input("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: alone, namespace: alone}\nspec: "+p.spec+"\n", "kubectl", "apply", "-f", "-")
		}
		for _, from := range []string{"near", "far"} {
			l.reaches(p.name, p.clients, targets, "80", "kubectl", "-n", "alone", "exec", from, "--")
		}
		// A policy sees the client's own address, because it acts before kube-proxy masquerades.
		l.reaches(p.name, p.client, []string{"192.168.49.2", "fd00:49::2"}, port, "client", "--")
	}
	// No policy isolates a pod from its node and kubelet.
	l.input("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: alone, namespace: alone}\nspec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n", "kubectl", "apply", "-f", "-")
	l.reaches("deny all", false, targets, "80", "kubectl", "-n", "alone", "exec", "near", "--")
	l.reaches("deny all", true, targets, "80", "node", "1", "--")
	l.run("kubectl", "-n", "alone", "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
}

// reaches waits until all requests succeed, or until all fail, because policies take a moment.
func (l *lab) reaches(what string, want bool, targets []string, port string, from ...string) {
	l.Helper()
	script := ""
	for _, a := range targets {
		script += "curl -s -m 1 -o /dev/null http://" + net.JoinHostPort(a, port) + " && echo " + a + " & "
	}
	var got []string
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		out, _ := l.try(append(slices.Clone(from), "sh", "-c", script+"wait")...)
		if got = strings.Fields(out); want && len(got) == len(targets) || !want && len(got) == 0 {
			return
		}
	}
	l.Errorf("with the policy %q, %v: of %v answer %v, want all %v", what, from, targets, got, want)
}
