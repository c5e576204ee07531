package cluster_test

import (
	"net/netip"
	"strings"
)

// egressManifest is a pod that repeatedly sends requests to the client outside, and leaves the cluster with the
// addresses of a Service.
const egressManifest = `
apiVersion: v1
kind: Pod
metadata: {name: out, labels: {app: out}}
spec:
  nodeName: node-3
  containers:
  - name: out
    image: curlimages/curl
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "while :; do curl -s -m 2 http://V4:9999; curl -s -g -m 2 http://[V6]:9999; sleep 0.2; done"]
---
apiVersion: v1
kind: Service
metadata: {name: out, annotations: {fairway.net/egress: pods}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: out}
  ports: [{port: 9}]
`

// routedManifest announces all addresses to routers. No router answers there.
const routedManifest = `
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: nobody, namespace: metallb-system}
spec: {myASN: 64501, peerASN: 64500, peerAddress: 192.168.49.77}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all, namespace: metallb-system}
`

// testEgress lets a pod leave with the addresses of a Service, and the client outside sees these addresses, in both
// families. status and explain name the node. Once a router also learns the address, they explain why the pod cannot
// leave with it.
func (l *lab) testEgress() {
	manifest := egressManifest
	for name, family := range map[string]string{"V4": "-4", "V6": "-6"} {
		own := strings.Fields(l.run("client", "--", "ip", "-o", family, "addr", "show", "scope", "global"))[3]
		manifest = strings.Replace(manifest, name, netip.MustParsePrefix(own).Addr().String(), 1)
	}
	l.input(manifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/out", "--timeout=120s")
	agent := strings.TrimSpace(l.run("kubectl", "-n", "kube-system", "get", "pod", "-l", "k8s-app=fairway-agent", "--field-selector", "spec.nodeName=node-3", "-o", "name"))
	in := []string{"kubectl", "-n", "kube-system", "exec", agent, "--", "fairway"}
	vips := strings.Fields(l.eventually(":", "kubectl", "get", "service", "out", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
	for _, vip := range vips {
		family := map[bool]string{true: "ip6", false: "ip"}[strings.Contains(vip, ":")]
		l.eventually("pods with app=out: with "+vip+", by node node-", append(in, "explain", "default/out")...)
		l.eventually(vip, append(in, "status")...)
		// No server listens there. The rule records the packets' source addresses.
		l.run("client", "--", "nft", "table inet seen-"+family+" { chain in { type filter hook input priority 0; tcp dport 9999 "+family+" saddr "+vip+" counter; }; }")
		l.eventually("seen", "client", "--", "sh", "-c", "nft list table inet seen-"+family+" | grep -q 'packets 0 ' || echo seen")
	}
	if len(vips) != 2 {
		l.Errorf("the addresses of the Service are %q", vips)
	}
	l.input(routedManifest, "kubectl", "apply", "-f", "-")
	l.eventually("is announced by BGP too", append(in, "explain", "default/out")...)
	l.eventually("is announced by BGP too", "kubectl", "get", "events", "--field-selector", "reason=EgressUnavailable")
	l.input(routedManifest, "kubectl", "delete", "-f", "-")
	l.eventually("by node node-", append(in, "explain", "default/out")...)
	l.run("kubectl", "delete", "pod/out", "service/out", "--now")
}
