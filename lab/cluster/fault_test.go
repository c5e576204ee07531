package cluster_test

import "strings"

// testFaults breaks the machines of the lab with every fault of the command, and heals them. The pod web and its node
// port exist.
func (l *lab) testFaults() {
	port := l.run("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	ask := []string{"client", "--", "curl", "-sS", "-m", "2", "http://192.168.49.3:" + port}
	silent := []string{"client", "--", "curl", "-sS", "-m", "0.3", "http://192.168.49.3:" + port}
	heal := func() { l.eventually("It works!", ask...) }
	for _, c := range []struct{ fault, shown string }{
		{"partition", "partitioned"}, {"partition --one-way in", "partitioned"}, {"partition --one-way out", "partitioned"},
		{"link-down", "link down"}, {"kill", "off"},
	} {
		l.run(append([]string{"fault", "node", "2"}, strings.Fields(c.fault)...)...)
		if out, err := l.try(silent...); err == nil {
			l.Errorf("a node with fault %s answers %q", c.fault, out)
		}
		if out, err := l.try("status"); (c.shown == "off") != (err != nil) || err == nil && !strings.Contains(out, c.shown) {
			l.Errorf("with fault %s status says %v:\n%s", c.fault, err, out)
		}
		if c.shown == "off" {
			l.refused("node-2 is not running", "node", "2", "--", "true")
			l.refused("node-2 is not running", "fault", "node", "2", "pause")
		}
		l.run("fault", "node", "2", "heal")
		heal()
	}
	l.run("fault", "2", "partition", "--from", "1,control-plane")
	if _, err := l.try("node", "1", "--", "ping", "-c1", "-W0.2", "192.168.49.3"); err == nil {
		l.Error("node 2 answers node 1, from which it is cut off")
	}
	l.run("client", "--", "ping", "-c1", "-W10", "192.168.49.3")
	if out := l.run("fault", "2", "heal"); !strings.Contains(out, "no longer partitioned") {
		l.Errorf("heal says %q", out)
	}
	l.run("fault", "2", "pause")
	if out := l.run("node", "2", "--", "ps", "-o", "stat=", "-C", "fairway,containerd,pause,web"); strings.Count(out, "T") != strings.Count(out, "\n") {
		l.Errorf("processes of a node that is paused are in state\n%s", out)
	}
	l.run("fault", "2", "heal")
	heal()
	l.run("fault", "control-plane", "kill")
	if out, err := l.try("kubectl", "get", "nodes", "--request-timeout=5s"); err == nil {
		l.Errorf("without control plane there are nodes: %s", out)
	}
	for _, c := range []string{"add-node", "remove-node 2", "restart-node 2", "redeploy"} {
		l.refused("control-plane ended\nhint: ", strings.Fields(c)...) // and the command does not change the nodes
	}
	l.run("fault", "control-plane", "heal")
	if out := l.run("restart-node", "2"); !strings.Contains(out, "node-2 is Ready") {
		l.Errorf("restart-node says %q", out)
	}
	heal()
	for _, c := range [][]string{
		{"unknown fault", "fault", "2", "sleep"}, {"name a machine", "fault", "2"}, {"no node \"7\"", "fault", "7", "kill"},
		{"--one-way \"up\"", "fault", "2", "partition", "--one-way", "up"}, {"are for the fault partition", "fault", "2", "kill", "--from", "1"},
		{"from itself", "fault", "2", "partition", "--from", "2"}, {"no node", "restart-node", "9"},
	} {
		l.refused(c[0], c[1:]...)
	}
}
