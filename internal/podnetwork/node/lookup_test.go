package node

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// wantLookups compares what the plan of a machine says of addresses with what the kernel answers.
func (c *cluster) wantLookups(m *machine, when string, addrs ...netip.Addr) {
	m.t.Helper()
	m.mustSync(c.peers()) // pods are in the plan since the Sync after their ADD
	p := m.network.Plan()
	for _, a := range addrs {
		next := p.Lookup(a)
		got := "nowhere"
		for _, h := range next.Hops {
			var link *net.Interface
			if err := m.do(func() (err error) { link, err = net.InterfaceByIndex(h.Link); return err }); err != nil {
				m.t.Fatalf("link %d: %v", h.Link, err)
			}
			got = "dev " + link.Name
			if h.Via.IsValid() {
				got = fmt.Sprintf("via %s dev %s", h.Via, link.Name)
			}
		}
		if next.Why == plan.WhySelf {
			got = "local"
		}
		text := m.run(fmt.Sprintf("ip route get %s 2>&1 || true", a))
		want := "nowhere"
		switch f := strings.Fields(text); {
		case strings.HasPrefix(text, "local "):
			want = "local"
		case slices.Contains(f, "via"):
			i, j := slices.Index(f, "via"), slices.Index(f, "dev")
			want = fmt.Sprintf("via %s dev %s", f[i+1], f[j+1])
		case slices.Contains(f, "dev") && !strings.Contains(text, "unreachable"):
			want = "dev " + f[slices.Index(f, "dev")+1]
		}
		if got != want {
			m.t.Errorf("%s, %s to %s: the plan says %s (%s), the kernel %s", when, m.peer.Name, a, got, next.Why, text)
		}
	}
}

// TestLookup: the plan says what the kernel does, for each way between nodes: to pods of this and of other nodes, to
// nodes, to addresses without a pod, and out of the cluster.
func TestLookup(t *testing.T) {
	for _, way := range []plan.Way{plan.WayAuto, plan.WayVXLAN, plan.WayBGP} {
		t.Run(string(way), func(t *testing.T) {
			c := newCarried(t, way)
			c.sync()
			if way == plan.WayBGP {
				c.carry()
				c.sync()
			}
			var addrs []netip.Addr
			for _, m := range c.machines {
				addrs = append(addrs, m.newPod().addrs...)
				addrs = append(addrs, m.peer.Addrs...)
			}
			addrs = append(addrs, addresses("10.244.1.99", "fd00:10:244:1::99", "10.244.3.99", "fd00:10:244:3::99", "10.244.9.9", "203.0.113.7", "2001:db8:77::7")...)
			for _, m := range c.machines {
				c.wantLookups(m, string(way), addrs...)
			}
		})
	}
}

// TestLookupFrom: a pod's packets leave with the address that the plan says.
func TestLookupFrom(t *testing.T) {
	c := newCluster(t, 2, dual)
	c.outside.serve()
	c.sync()
	m := c.machines[0]
	m.serve()
	p, plain, far := m.newPod(), m.newPod(), c.machines[1].newPod()
	check := func(when string, p *pod, want plan.Why) {
		t.Helper()
		m.mustSync(c.peers())
		for k, to := range []netip.Addr{outside4, outside6} {
			next := m.network.Plan().LookupFrom(p.addrs[k], to)
			source := next.Source
			switch next.Why {
			case plan.WhyMasquerade:
				source = m.peer.Addrs[k]
			case plan.WhyEgressNode:
				source = egressOf(to)
			}
			if next.Why != want {
				t.Errorf("%s: to %s: %s, want %s", when, to, next.Why, want)
			}
			p.wantSource(when, to, source)
		}
		for k, to := range far.addrs {
			if next := m.network.Plan().LookupFrom(p.addrs[k], to); next.Why != plan.WhyNeighbour || next.Node != c.machines[1].peer.Name || next.Source.IsValid() {
				t.Errorf("%s: to pod %s: %+v", when, to, next)
			}
			p.wantSource(when+", to a pod", to, p.addrs[k])
		}
	}
	check("masqueraded", p, plan.WhyMasquerade)
	c.leaveBy(m, map[*pod]*machine{p: m})
	check("its node announces the egress address", p, plan.WhyEgressHere)
	check("a pod without an egress address", plain, plan.WhyMasquerade)
	c.leaveBy(c.machines[1], map[*pod]*machine{p: m})
	check("another node announces it", p, plan.WhyEgressNode)
	c.leaveBy(nil, map[*pod]*machine{p: m})
	m.mustSync(c.peers())
	if next := m.network.Plan().LookupFrom(p.addrs[0], outside4); next.Why != plan.WhyNoGateway || len(next.Hops) > 0 {
		t.Errorf("nobody announces it: %+v", next)
	}
}
