package plan

import (
	"net/netip"
	"strings"
	"testing"
)

// TestTunnelEnds: nobody takes a podCIDR from an older node by claiming an address in it, nor
// the way to an older node by a podCIDR around its address.
func TestTunnelEnds(t *testing.T) {
	for _, test := range []struct {
		name, want string
		older      Peer
		younger    Peer
	}{
		{"an address in an older node's podCIDR", "10.244.8.0/24 10.244.9.0/24", Peer{Addrs: addresses("198.51.100.8"), PodCIDRs: prefixes("10.244.8.0/24", "10.244.9.0/24")},
			Peer{Addrs: addresses("10.244.8.7"), PodCIDRs: prefixes("10.244.7.0/24")}},
		{"a podCIDR around an older node's address", "10.244.8.0/24", Peer{Addrs: addresses("10.99.0.8"), PodCIDRs: prefixes("10.244.8.0/24")},
			Peer{Addrs: addresses("198.51.100.7"), PodCIDRs: prefixes("10.99.0.0/24")}},
		{"an address in its own podCIDR", "10.244.8.0/24", Peer{Addrs: addresses("198.51.100.8"), PodCIDRs: prefixes("10.244.8.0/24")},
			Peer{Addrs: addresses("10.244.7.7"), PodCIDRs: prefixes("10.244.7.0/24")}},
		{"this node's address", "10.244.8.0/24", Peer{Addrs: addresses("198.51.100.8"), PodCIDRs: prefixes("10.244.8.0/24")},
			Peer{Addrs: addresses("192.0.2.1"), PodCIDRs: prefixes("10.244.7.0/24")}},
		{"both right", "10.244.7.0/24 10.244.8.0/24", Peer{Addrs: addresses("198.51.100.8"), PodCIDRs: prefixes("10.244.8.0/24")},
			Peer{Addrs: addresses("198.51.100.7"), PodCIDRs: prefixes("10.244.7.0/24")}},
	} {
		c := testState()
		c.Way, c.Self.Addrs, c.Departed = WayVXLAN, addresses("192.0.2.1"), nil
		test.older.Name, test.older.Created = "older", born(1)
		test.younger.Name, test.younger.Created = "younger", born(2)
		c.Peers = []Peer{test.younger, c.Self, test.older}
		p := Make(c)
		var got []string
		for _, dst := range sortedKeys(p.Routes) {
			if p.Routes[dst].By == WayVXLAN {
				got = append(got, dst.String())
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: routes through the tunnel %q, want %q; problems %v", test.name, got, test.want, p.Problems)
		}
		if (len(p.Problems) > 0) == (test.name == "both right") {
			t.Errorf("%s: problems %v", test.name, p.Problems)
		}
	}
}

// TestSameMAC: of two nodes whose names have the same address in the tunnel the younger is reported
// and left out, and this node's own address is no other's.
func TestSameMAC(t *testing.T) {
	const one, two = "node-11974701", "node-22741553"
	if TunnelMAC(one) != TunnelMAC(two) {
		t.Fatalf("%s has %s, %s has %s: find two others", one, TunnelMAC(one), two, TunnelMAC(two))
	}
	for _, test := range []struct {
		self    string
		peers   []Peer
		routes  int
		problem string
	}{
		{"node-1", []Peer{
			{Name: two, Created: born(2), Addrs: addresses("198.51.100.2"), PodCIDRs: prefixes("10.244.2.0/24")},
			{Name: one, Created: born(1), Addrs: addresses("198.51.100.1"), PodCIDRs: prefixes("10.244.1.0/24")},
		}, 1, "node " + two + " has the MAC address 3a:8c:f3:89:84:57 in the tunnel, as node " + one + " has, which is older"},
		{one, []Peer{
			{Name: two, Created: born(2), Addrs: addresses("198.51.100.2"), PodCIDRs: prefixes("10.244.2.0/24")},
		}, 0, "as node " + one + " has"},
	} {
		c := testState()
		c.Way, c.Self.Name, c.Self.Addrs, c.Self.PodCIDRs, c.Departed, c.ClusterCIDRs = WayVXLAN, test.self, addresses("192.0.2.1"), prefixes("10.244.9.0/24"), nil, nil
		c.Peers = append(test.peers, c.Self)
		p := Make(c)
		routes := 0
		for dst, r := range p.Routes {
			if r.By == WayVXLAN {
				routes++
				if dst != netip.MustParsePrefix("10.244.1.0/24") {
					t.Errorf("on %s: a route to %s", test.self, dst)
				}
			}
		}
		if routes != test.routes || len(p.Problems) != 1 || p.Problems[0].Node != two || !strings.Contains(p.Problems[0].Message, test.problem) {
			t.Errorf("on %s: %d routes, problems %v, want %q", test.self, routes, p.Problems, test.problem)
		}
	}
}
