package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
)

// directManifest is a Service of type LoadBalancer without node ports, in front of the pods of routerManifest.
const directManifest = `
---
apiVersion: v1
kind: Service
metadata: {name: direct, annotations: {metallb.io/loadBalancerIPs: 203.0.113.11}}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  selector: {app: web}
  ports: [{port: 80}]
`

// testEdge: the balancer in front of the cluster forwards the client's connections to NodePorts, or with the option
// directly to pods. While its process is stopped, its kernel keeps forwarding.
func (l *lab) testEdge() {
	l.input(routerManifest+directManifest, "kubectl", "apply", "-f", "-")
	l.eventually("203.0.113.10", "kubectl", "get", "service", "web")
	l.eventually("203.0.113.11", "kubectl", "get", "service", "direct")
	get := func(last string) []string {
		return []string{"client", "--", "curl", "-sS", "-m", "5", "http://203.0.113." + last + "/"}
	}
	l.eventually("It works!", get("10")...)
	l.eventually("192.168.49.3:", "edge", "--", "fairway", "dump", "--service", "default/web")
	l.eventually("NoNodePort", "logs", "edge")
	l.refused("can be killed, paused and healed", "fault", "edge", "link-down")
	l.refused("the lab has no router", "router", "--", "true")

	config := filepath.Join(l.dir(), "edge", "edge.yaml")
	text, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, []byte(strings.Replace(string(text), "targetType: instance", "targetType: ip\nroutes: static", 1)), 0o600)
	}
	if err != nil {
		l.Fatal(err)
	}
	l.run("fault", "edge", "kill")
	l.refused("edge ended", "status")
	l.eventually("It works!", get("10")...)
	l.run("fault", "edge", "heal")
	l.run("status")
	l.eventually("It works!", get("11")...)
	l.eventually("via 192.168.49.3 dev eth0", "edge", "--", "ip", "route", "show", "proto", "70") // for any podCIDR
}
