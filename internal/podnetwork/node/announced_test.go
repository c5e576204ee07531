package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/rib"
)

// said are routes as "PREFIX NEXTHOP ROUTER".
func said(lines ...string) (all []rib.Route) {
	for _, line := range lines {
		f := strings.Fields(line)
		all = append(all, rib.Route{Prefix: netip.MustParsePrefix(f[0]), NextHop: netip.MustParseAddr(f[1]), Router: netip.MustParseAddr(f[2])})
	}
	return all
}

// TestAnnounced: which routers lead to a podCIDR of a node in another subnet.
func TestAnnounced(t *testing.T) {
	for name, test := range map[string]struct {
		said []rib.Route
		want string // next hops, and whether the podCIDR itself was announced
	}{
		"nothing":              {nil, "[] false"},
		"itself":               {said("10.244.9.0/24 192.0.2.254 192.0.2.254"), "[192.0.2.254] true"},
		"two routers":          {said("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.9.0/24 192.0.2.253 192.0.2.253"), "[192.0.2.253 192.0.2.254] true"},
		"one router twice":     {said("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.9.0/24 192.0.2.254 192.0.2.253"), "[192.0.2.254] true"},
		"an aggregate":         {said("10.244.0.0/16 192.0.2.254 192.0.2.254", "0.0.0.0/0 192.0.2.253 192.0.2.253"), "[192.0.2.254] false"},
		"a default route":      {said("0.0.0.0/0 192.0.2.253 192.0.2.253", "10.244.8.0/24 192.0.2.254 192.0.2.254"), "[192.0.2.253] false"},
		"a part of it":         {said("10.244.9.0/25 192.0.2.254 192.0.2.254"), "[] false"},
		"the longest":          {said("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.0.0/16 192.0.2.253 192.0.2.253"), "[192.0.2.254] true"},
		"a next hop elsewhere": {said("10.244.9.0/24 198.51.100.9 192.0.2.254"), "[192.0.2.254] true"},
		"all elsewhere":        {said("10.244.9.0/24 198.51.100.9 198.51.100.254"), "[] false"},
		"this node":            {said("10.244.9.0/24 192.0.2.3 192.0.2.254"), "[] false"},
		"the other family":     {said("10.244.9.0/24 2001:db8::fe 2001:db8::fe"), "[] false"},
		"many": {said("10.244.9.0/24 192.0.2.201 192.0.2.254", "10.244.9.0/24 192.0.2.202 192.0.2.254", "10.244.9.0/24 192.0.2.203 192.0.2.254",
			"10.244.9.0/24 192.0.2.204 192.0.2.254", "10.244.9.0/24 192.0.2.205 192.0.2.254", "10.244.9.0/24 192.0.2.206 192.0.2.254",
			"10.244.9.0/24 192.0.2.209 192.0.2.254", "10.244.9.0/24 192.0.2.208 192.0.2.254", "10.244.9.0/24 192.0.2.207 192.0.2.254"),
			"[192.0.2.201 192.0.2.202 192.0.2.203 192.0.2.204 192.0.2.205 192.0.2.206 192.0.2.207 192.0.2.208] true"},
	} {
		c := testState()
		hops, itself := newAnnounced(test.said, c.networks, c.self.Addrs).to(netip.MustParsePrefix("10.244.9.0/24"))
		vias := []netip.Addr{}
		for _, h := range hops {
			if vias = append(vias, h.via); h.link != 1 {
				t.Errorf("%s: %s is on link %d", name, h.via, h.link)
			}
		}
		if got := fmt.Sprint(vias, itself); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	link := newAnnounced(said("fd00:10:244:9::/64 fe80::1 2001:db8::fe"), testState().networks, nil)
	if hops, _ := link.to(netip.MustParsePrefix("fd00:10:244:9::/64")); !slices.Equal(hops, []hop{{netip.MustParseAddr("fe80::1"), 1}}) {
		t.Errorf("a link-local next hop: %v", hops)
	}
}

// TestNothingFromTheNetworkIsTrusted: what routers announce makes no route but one to a podCIDR of a node, and no
// podCIDR takes the routers' addresses.
func TestNothingFromTheNetworkIsTrusted(t *testing.T) {
	c := testState("10.244.9.0/24", "192.0.2.224/27") // the second has the router
	c.way, c.clusterCIDRs = WayBGP, nil
	c.peers[2].Addrs = addresses("198.51.100.9")
	c.announced = newAnnounced(said(
		"10.244.9.0/24 192.0.2.254 192.0.2.254",
		"0.0.0.0/0 192.0.2.250 192.0.2.250",
		"198.51.100.6/32 192.0.2.254 192.0.2.254", // the API server
		"10.96.0.0/16 192.0.2.254 192.0.2.254",    // Services
		"10.244.2.0/24 192.0.2.254 192.0.2.254",   // a neighbour's
		"10.244.3.0/24 192.0.2.254 192.0.2.254",   // this node's
		"10.244.77.0/24 192.0.2.254 192.0.2.254",  // nobody's
	), c.networks, c.self.Addrs)
	c.gateways = nil
	p := makePlan(c)
	var got []string
	for _, dst := range sortedKeys(p.routes) {
		if dst.Addr().Is4() {
			got = append(got, fmt.Sprintf("%s %s", dst, p.routes[dst].via))
		}
	}
	want := "[10.244.1.0/24 192.0.2.1 10.244.2.0/24 192.0.2.2 10.244.3.0/24 invalid IP 10.244.9.0/24 192.0.2.254]"
	if fmt.Sprint(got) != want {
		t.Errorf("the routes are\n%s, want\n%s", got, want)
	}
	if text := fmt.Sprint(p.problems); !strings.Contains(text, "192.0.2.224/27 of node new is not used: it contains the address of a router: 192.0.2.250") {
		t.Errorf("the problems are %s", text)
	}
}

// newCarried is a cluster over two subnets whose router takes pods' packets, and leads nowhere yet.
func newCarried(t testing.TB, way Way) *cluster {
	t.Helper()
	c := newRouted(t, way, anyFamily, dual)
	c.fabric.run("nft delete table inet cloud")
	for _, m := range c.machines {
		m.config.RIB = rib.Of(t.TempDir(), m.peer.Name)
		m.restart()
	}
	return c
}

// carry does what routers and speakers do: it gives the fabric routes to the podCIDRs that agents ask for, and tells all agents.
func (c *cluster) carry() {
	c.t.Helper()
	var carried []Peer
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
		carried = append(carried, Peer{Name: m.peer.Name, PodCIDRs: cidrs})
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
	c := newCarried(t, WayBGP)
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
		said []rib.Route
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
	c := newCarried(t, WayVXLAN)
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
	for _, way := range []Way{WayBGP, WayAuto, WayBGP, WayVXLAN} {
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
		if got := strings.Contains(routes, "10.244.3.0/24 via 192.0.2.254 dev eth0"); got != (way == WayBGP) {
			t.Errorf("%s: the routes to another subnet are:\n%s", way, routes)
		}
		if got := strings.Contains(c.machines[0].run("ip link"), "fairway-vxlan"); got != (way != WayBGP) {
			t.Errorf("%s: the device is there: %t", way, got)
		}
		if own, err := c.machines[0].config.RIB.PodCIDRs(); err != nil || (len(own) > 0) != (way == WayBGP) {
			t.Errorf("%s: to announce are %v, %v", way, own, err)
		}
	}
}

// TestLearned: which routes a machine outside of the cluster takes from routers.
func TestLearned(t *testing.T) {
	cidrs := prefixes("10.244.0.0/16", "192.0.2.128/25")
	for name, test := range map[string]struct {
		said []rib.Route
		want string // destinations
	}{
		"nothing":                  {nil, "[]"},
		"pods, and what is not":    {said("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.245.0.0/24 192.0.2.254 192.0.2.254"), "[10.244.9.0/24]"},
		"the range itself":         {said("10.244.0.0/16 192.0.2.9 192.0.2.9"), "[10.244.0.0/16]"},
		"a default route":          {said("0.0.0.0/0 192.0.2.9 192.0.2.9", "10.244.1.0/26 192.0.2.9 192.0.2.9"), "[10.244.0.0/16 10.244.1.0/26 192.0.2.128/25]"},
		"what leads to the router": {said("192.0.2.240/28 192.0.2.254 192.0.2.254", "192.0.2.128/28 192.0.2.254 192.0.2.254"), "[192.0.2.128/28]"},
		"a next hop elsewhere":     {said("10.244.9.0/24 198.51.100.9 198.51.100.9"), "[]"},
	} {
		p := planLearned(test.said, cidrs, testState().networks, testState().self.Addrs)
		if got := fmt.Sprint(sortedKeys(p.routes)); got != test.want || (len(p.problems) > 0) != (len(p.routes) == 0) {
			t.Errorf("%s: %s %v, want %s", name, got, p.problems, test.want)
		}
	}
}

// TestRoutesToAndFromBGP: nodes in one subnet lose no packet between pods when they change from plain routes to routers, and
// back: neighbours keep their plain routes.
func TestRoutesToAndFromBGP(t *testing.T) {
	c := newCarried(t, WayRoutes)
	c.machines = c.machines[:2]
	c.sync()
	everybody := c.converse()
	everybody("at first")
	later := time.Duration(0)
	for _, way := range []Way{WayBGP, WayRoutes} {
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
		if own, err := c.machines[0].config.RIB.PodCIDRs(); err != nil || (len(own) > 0) != (way == WayBGP) {
			t.Errorf("%s: to announce are %v, %v", way, own, err)
		}
	}
}
