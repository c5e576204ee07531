package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// said are routes as "PREFIX NEXTHOP ROUTER".
func said(lines ...string) (all []podroutes.Route) {
	for _, line := range lines {
		f := strings.Fields(line)
		all = append(all, podroutes.Route{Prefix: netip.MustParsePrefix(f[0]), NextHop: netip.MustParseAddr(f[1]), Router: netip.MustParseAddr(f[2])})
	}
	return all
}

// newCarried is a cluster over two subnets whose router takes pods' packets, and leads nowhere yet.
func newCarried(t testing.TB, way plan.Way) *cluster {
	t.Helper()
	c := newRouted(t, way, anyFamily, dual)
	c.fabric.run("nft delete table inet cloud")
	for _, m := range c.machines {
		m.config.RIB = podroutes.Of(t.TempDir(), m.peer.Name)
		m.restart()
	}
	return c
}

// carry does what routers and speakers do: it gives the fabric routes to the podCIDRs that agents ask for, and tells all agents.
func (c *cluster) carry() {
	c.t.Helper()
	var carried []plan.Peer
	for _, m := range c.machines {
		cidrs, err := m.config.RIB.PodCIDRs()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, cidr := range m.peer.PodCIDRs {
			via := m.peer.Addrs[slices.IndexFunc(m.peer.Addrs, func(a netip.Addr) bool { return a.Is4() == cidr.Addr().Is4() })]
			if slices.Contains(cidrs, cidr) {
				c.fabric.run(fmt.Sprintf("ip route replace %s via %s", cidr, via))
			} else {
				c.fabric.run(fmt.Sprintf("ip route del %s via %s 2>/dev/null || true", cidr, via))
			}
		}
		carried = append(carried, plan.Peer{Name: m.peer.Name, PodCIDRs: cidrs})
	}
	for i, m := range c.machines {
		var lines []string
		for _, p := range carried {
			for _, cidr := range p.PodCIDRs {
				router := fmt.Sprintf("192.0.%d.254", 2+(i+1)/3)
				if cidr.Addr().Is6() {
					router = fmt.Sprintf("2001:db8:%d::fe", (i+1)/3)
				}
				if p.Name != m.peer.Name {
					lines = append(lines, fmt.Sprintf("%s %s %s", cidr, router, router))
				}
			}
		}
		if err := m.config.RIB.SetReceived(said(lines...)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestByRouters: pods in two subnets reach each other by what routers announce, over several of them too; who is not
// announced is unreachable, at once.
func TestByRouters(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	for i, m := range c.machines { // several podCIDRs of a family
		m.peer.PodCIDRs = append(m.peer.PodCIDRs, prefixes(fmt.Sprintf("10.244.%d.0/24", 101+i), fmt.Sprintf("fd00:10:244:%d::/64", 101+i))...)
	}
	near, far := c.machines[0], c.machines[2]
	c.sync()
	if got := near.routes(); !strings.Contains(got, "unreachable 10.244.3.0/24") || !strings.Contains(got, "10.244.2.0/24 via 192.0.2.2 dev eth0") {
		t.Errorf("before anybody announces anything the routes are\n%s", got)
	}
	c.carry()
	c.sync()
	want := `10.244.102.0/24 via 192.0.2.2 dev eth0
10.244.103.0/24 via 192.0.2.254 dev eth0
10.244.2.0/24 via 192.0.2.2 dev eth0
10.244.3.0/24 via 192.0.2.254 dev eth0
fd00:10:244:102::/64 via 2001:db8:0::2 dev eth0`
	for line := range strings.Lines(strings.ReplaceAll(want, ":0::", "::")) {
		if got := near.routes(); !strings.Contains(got, strings.TrimSpace(line)) {
			t.Errorf("there is no %q in\n%s", strings.TrimSpace(line), got)
		}
	}
	pods := []*pod{near.newPod(), c.machines[1].newPod(), far.newPod()}
	reach(pods)

	// A second router.
	c.fabric.run("ip addr add 192.0.2.253/24 dev br0; ip addr add 2001:db8::fd/64 dev br0 nodad")
	all, err := near.config.RIB.Received()
	if err != nil {
		t.Fatal(err)
	}
	both := slices.Concat(all, said("10.244.3.0/24 192.0.2.253 192.0.2.253", "fd00:10:244:3::/64 2001:db8::fd 2001:db8::fd"))
	for _, step := range []struct {
		said []podroutes.Route
		hops int
	}{{both, 2}, {all, 1}, {both, 2}, {nil, 0}, {both, 2}} {
		if err := near.config.RIB.SetReceived(step.said); err != nil {
			t.Fatal(err)
		}
		near.mustSync(c.peers())
		before := near.run("ip -o route show proto 70; ip -6 -o route show proto 70")
		near.mustSync(c.peers())
		if after := near.run("ip -o route show proto 70; ip -6 -o route show proto 70"); after != before {
			t.Errorf("another Sync changed\n%s to\n%s", before, after)
		}
		for _, show := range []string{"ip route show 10.244.3.0/24", "ip -6 route show fd00:10:244:3::/64"} {
			if got := near.run(show); strings.Count(got, "via ") != step.hops {
				t.Errorf("with %d routers: %s", step.hops, got)
			}
		}
		if step.hops > 0 {
			reach(pods)
		}
	}
}

// TestToAndFromBGP: no packet between pods is lost while one node after the other changes to routers, and from them; only
// for a while after that the routers still know the pods.
func TestToAndFromBGP(t *testing.T) {
	c := newCarried(t, plan.WayVXLAN)
	c.sync()
	a, b := c.machines[0].newPod(), c.machines[2].newPod()
	b.echo()
	var talks []*talk
	for i, addr := range b.addrs {
		talks = append(talks, newTalk(fmt.Sprintf("IPv%d", 4+2*i), a, addr))
	}
	everybody := func(when string) {
		t.Helper()
		for _, k := range talks {
			k.goOn(when)
		}
	}
	later := time.Duration(0)
	for _, way := range []plan.Way{plan.WayBGP, plan.WayAuto, plan.WayBGP, plan.WayVXLAN} {
		for _, m := range c.machines {
			c.change(m, way, func() time.Time { return time.Now().Add(later) }, everybody)
			c.carry()
			for _, m := range c.machines {
				m.mustSync(c.peers())
			}
			everybody(fmt.Sprintf("after the routers know that %s has changed to %s", m.peer.Name, way))
		}
		for range 2 {
			later += transition
			for _, m := range c.machines {
				m.mustSync(c.peers())
				everybody(fmt.Sprintf("when %s has settled with %s", m.peer.Name, way))
			}
		}
		c.carry()
		c.sync()
		everybody("in the end of " + string(way))
		routes := c.machines[0].routes()
		if got := strings.Contains(routes, "10.244.3.0/24 via 192.0.2.254 dev eth0"); got != (way == plan.WayBGP) {
			t.Errorf("%s: the routes to another subnet are:\n%s", way, routes)
		}
		if got := strings.Contains(c.machines[0].run("ip link"), "fairway-vxlan"); got != (way != plan.WayBGP) {
			t.Errorf("%s: the device is there: %t", way, got)
		}
		if own, err := c.machines[0].config.RIB.PodCIDRs(); err != nil || (len(own) > 0) != (way == plan.WayBGP) {
			t.Errorf("%s: to announce are %v, %v", way, own, err)
		}
	}
}

// TestRoutesToAndFromBGP: nodes in one subnet lose no packet between pods when they change from plain routes to routers, and
// back: neighbours keep their plain routes.
func TestRoutesToAndFromBGP(t *testing.T) {
	c := newCarried(t, plan.WayRoutes)
	c.machines = c.machines[:2]
	c.sync()
	everybody := c.converse()
	everybody("at first")
	later := time.Duration(0)
	for _, way := range []plan.Way{plan.WayBGP, plan.WayRoutes} {
		for _, m := range c.machines {
			c.change(m, way, func() time.Time { return time.Now().Add(later) }, everybody)
		}
		for range 2 {
			later += transition
			for _, m := range c.machines {
				m.mustSync(c.peers())
				everybody(fmt.Sprintf("when %s has settled with %s", m.peer.Name, way))
			}
		}
		if own, err := c.machines[0].config.RIB.PodCIDRs(); err != nil || (len(own) > 0) != (way == plan.WayBGP) {
			t.Errorf("%s: to announce are %v, %v", way, own, err)
		}
	}
}
