package cluster_test

import (
	"testing"
	"time"
)

// routerManifest is a pod on each node behind a Service of type LoadBalancer.
const routerManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 80}]
`

// TestRouter: the router BIRD learns a Service's address from the nodes, and sends the client's connections to both
// nodes. If one node stops answering, all connections go to the other.
func TestRouter(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--load-balancer", "bgp")...)
	l.input(routerManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
	l.eventually("203.0.113.10", "kubectl", "get", "service", "web")
	const long = 2 * time.Minute // BGP retries after seconds
	both := func() { l.within(long, "2 next hops", routes...) }
	both()
	l.balancers("the router is there", "default/web 203.0.113.10 bgp node-2 ", "node-1: the session with router is up (for ", "node-2: the voters grant what it asks for (for ")
	get := []string{"client", "--", "curl", "-sS", "-m", "5", "http://203.0.113.10/"}
	l.eventually("It works!", get...)
	l.eventually("Established", "router", "--", "birdc", "show", "protocols")

	l.run("fault", "node", "2", "link-down")
	l.within(long, "203.0.113.10 via 192.168.49.2 dev eth0", routes...)
	l.eventually("It works!", get...)
	l.run("fault", "node", "2", "heal")
	both()

	l.refused("can be killed, paused and healed", "fault", "router", "link-down")
	l.run("fault", "router", "kill")
	l.refused("router ended", "status")
	l.balancers("the router is killed", "node-1: the session with router is not up: ", "203.0.113.10 bgp node-2 to router: the session is not up: ")
	l.eventually("BGPSessionDown", "kubectl", "get", "events", "--field-selector", "involvedObject.kind=Node")
	l.eventually("It works!", get...) // its kernel still forwards packets
	l.run("fault", "router", "heal")
	l.run("status")
	l.within(long, "Established", "router", "--", "birdc", "show", "protocols")
	both()
	l.eventually("It works!", get...)
}

// routes is a command that prints the route to the Service's address, and the number of its next hops.
var routes = []string{"router", "--", "sh", "-c", `ip route show 203.0.113.10; echo "$(ip route show 203.0.113.10 | grep -c nexthop) next hops"`}
