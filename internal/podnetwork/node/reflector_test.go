package node

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// sourceOf is what a machine's speaker reads. Those that reflect alone have sessions with the router.
func (c *cluster) sourceOf(of *machine, reflect ...*machine) fixedSource {
	var nodes []announce.Node
	for _, m := range c.machines {
		n := announce.Node{Name: m.peer.Name, Addrs: m.peer.Addrs, PodCIDRs: m.peer.PodCIDRs}
		if slices.Contains(reflect, m) {
			n.Labels = map[string]string{announce.ReflectorLabel: "64501"}
		}
		nodes = append(nodes, n)
	}
	s := fixedSource{Self: of.peer.Name, RIB: of.config.RIB, Nodes: nodes}
	if slices.Contains(reflect, of) {
		s.Peers = of.routers(false)
	}
	return s
}

// TestReflectors: a node with the label tells the router of its neighbour's podCIDRs, and the neighbour what the router
// announces, in both families; packets go straight between router and neighbour. A neighbour that falls silent, or whose
// speaker ends, is gone for the router, and not the reflector.
func TestReflectors(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	ask := c.bird(true)
	near, neighbour, far := c.machines[0], c.machines[1], c.machines[2]
	c.run()
	var stops []func(syscall.Signal)
	for _, m := range c.machines {
		stops = append(stops, m.speakAs(c.sourceOf(m, near, far)))
	}
	for _, m := range []*machine{near, neighbour} {
		m.leads(far, "via")
		far.leads(m, "via")
	}
	if out := neighbour.routes(); !strings.Contains(out, "10.244.3.0/24 via 192.0.2.254 dev eth0") || !strings.Contains(out, "fd00:10:244:3::/64 via 2001:db8::fe dev eth0") {
		t.Errorf("the neighbour's routes are:\n%s", out)
	}
	if out := c.fabric.run("ip route show 10.244.2.0/24; ip -6 route show fd00:10:244:2::/64"); !strings.Contains(out, "via 192.0.2.2 ") || !strings.Contains(out, "via 2001:db8::2 ") {
		t.Errorf("the router's routes to the neighbour are:\n%s", out)
	}
	if out := ask("show", "protocols"); strings.Count(out, "Established") != 4 {
		t.Errorf("the router has other sessions than those of the reflectors:\n%s", out)
	}
	pods := []*pod{near.newPod(), neighbour.newPod(), far.newPod()}
	reach(pods)

	stops[1](syscall.SIGTERM)
	far.leads(neighbour, "unreachable")
	far.leads(near, "via")
	stops[1] = neighbour.speakAs(c.sourceOf(neighbour, near, far))
	far.leads(neighbour, "via")
	for _, m := range []*machine{near, far} {
		neighbour.leads(m, "via")
	}
	near.leads(neighbour, "via")
	reach(pods)
	eventually(t, "BFD is up", func() bool { return strings.Contains(near.log.String(), "BFD is up\" address=192.0.2.2") })
	neighbour.run("nft 'table inet silent { chain in { type filter hook prerouting priority -400; iif eth0 drop; }; chain out { type filter hook postrouting priority 400; oif eth0 drop; }; }'")
	t.Logf("unreachable after %v", far.leads(neighbour, "unreachable"))
	far.leads(near, "via")
}
