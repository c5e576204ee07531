//go:build paths

package cluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// pathBalanced is a Service of type LoadBalancer, with the pool of its address.
const pathBalanced = `
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: shop}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: shop}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{name: http, port: 80}]}
`

// TestPaths: fairway path predicts what a probe shows in each mode, over each pod network, and in both families. PATHS is a
// regular expression over the names.
func TestPaths(t *testing.T) {
	only := regexp.MustCompile(os.Getenv("PATHS"))
	for _, c := range []struct {
		name, outside string
		up            []string
	}{
		{"nftables", "198.51.100.7", nil},
		{"iptables", "198.51.100.7", []string{"--proxy-mode", "iptables"}},
		{"userspace", "198.51.100.7", []string{"--proxy-mode", "userspace"}},
		{"ebpf", "198.51.100.7", []string{"--proxy-mode", "ebpf"}},
		{"vxlan", "198.51.100.7", []string{"--pod-network", "vxlan"}},
		{"bridge", "198.51.100.7", []string{"--pod-network", "bridge"}},
		{"dual", "198.51.100.7", []string{"--dual-stack"}},
		{"ipv6", "2001:db8::7", []string{"--ipv6"}},
		{"ipv6-iptables", "2001:db8::7", []string{"--ipv6", "--proxy-mode", "iptables"}},
		{"ipv6-vxlan", "2001:db8::7", []string{"--ipv6", "--pod-network", "vxlan"}},
	} {
		if !only.MatchString(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			l.run(l.upArgs(append([]string{"--nodes", "2"}, c.up...)...)...)
			l.input(pathWorld+"---"+pathBalanced, "kubectl", "apply", "-f", "-")
			l.run("kubectl", "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
			l.run("kubectl", "-n", "shop", "wait", "--for=jsonpath={.endpoints[0].conditions.ready}=true", "endpointslice", "-l", "kubernetes.io/service-name in (web,far,closed,balanced,local)", "--timeout=30s")
			l.run("kubectl", "-n", "shop", "wait", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}", "service/balanced", "service/local", "--timeout=30s")
			config := filepath.Join(l.dir(), "kubeconfig")
			for _, name := range []string{"svc/balanced", "svc/local"} {
				l.asked(config, 0, "✓ node-", "outside:"+c.outside, name) // the network step: which node announces it
				l.asked(config, 0, "Predicted, and seen", "outside:"+c.outside, name)
			}
			l.pathPairs(config, c.outside, "svc/web", "node/node-1:30080", "pod/web-2:80", "svc/balanced", "svc/local")
			if c.name == "userspace" {
				l.sentence(config, 0, "seen as far as the proxy", "pod/cart", "svc/web", "--each")
				l.sentence(config, 2, "web-2 refuses: nothing listens on 9999, or only on 127.0.0.1.", "node/node-1", "svc/closed")
				return
			}
			l.sentence(config, 0, "seen 1×: delivered", "pod/cart", "svc/web", "--each")
			l.sentence(config, 2, "web-2 refuses: nothing listens on 9999, or only on 127.0.0.1.", "pod/cart", "svc/closed")
		})
	}
}
