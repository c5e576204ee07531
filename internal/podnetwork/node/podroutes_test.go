package node

import (
	"strings"
	"testing"
)

// TestPodRoutesRestored: routes to pods of this node that another program deletes are there again, those of
// pods that have gone are not.
func TestPodRoutesRestored(t *testing.T) {
	c := newCluster(t, 2, dual)
	c.sync()
	m := c.machines[0]
	m.newPod()
	gone := m.newPod()
	c.sync()
	if m.log.Count("deleted routes to pods") != 0 {
		t.Errorf("routes were restored that nobody had deleted: %s", m.log)
	}
	all := func() string { return m.run("ip route; ip -6 route | grep -v '^fe80'") }
	gone.run("ip link del eth0")
	before := all()
	m.run("ip route flush proto 70; ip -6 route flush proto 70")
	if all() == before {
		t.Fatal("no route was deleted")
	}
	c.sync()
	if after := all(); after != before {
		t.Errorf("routes before:\n%s\nafter:\n%s", before, after)
	}
	if n := m.log.Count("deleted routes to pods"); n != 1 {
		t.Errorf("the log says so %d times: %s", n, m.log)
	}
	if !strings.Contains(before, " dev fw") {
		t.Errorf("there was no route to a pod:\n%s", before)
	}
}
