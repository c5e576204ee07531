package node

import (
	"slices"
	"strings"
	"testing"
)

// TestNeighbours: a node keeps entries for the other nodes and for gateways in its networks, in both families, as long as
// there are such, and for nobody else.
func TestNeighbours(t *testing.T) {
	c := newCluster(t, 3, dual)
	m := c.machines[0]
	kept := func() string {
		var all []string
		for line := range strings.Lines(m.run("ip neigh show proto 70; ip -6 neigh show proto 70")) {
			all = append(all, strings.Fields(line)[0])
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), " ")
	}
	want := func(when, want string) {
		t.Helper()
		if got := kept(); got != want {
			t.Errorf("%s: kept are %s, want %s", when, got, want)
		}
	}
	m.mustSync(c.peers())
	want("at first", "192.0.2.2 192.0.2.3 192.0.2.99 2001:db8::2 2001:db8::3 2001:db8::99")
	m.run("ip link set eth0 down; ip link set eth0 up; ip -6 addr add 2001:db8::1/64 dev eth0 nodad; ip route add default via 192.0.2.99")
	m.mustSync(c.peers())
	want("after the link was down", "192.0.2.2 192.0.2.3 192.0.2.99 2001:db8::2 2001:db8::3")
	m.restart()
	m.mustSync(c.peers()[:2])
	want("when a node has gone", "192.0.2.2 192.0.2.99 2001:db8::2")
	if err := m.do(func() error { return m.network.Cleanup(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	want("after cleanup", "")
}
