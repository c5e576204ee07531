package plan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestGatewayWithoutTunnel: by WireGuard a pod does not leave by another node without the tunnel inside of it.
func TestGatewayWithoutTunnel(t *testing.T) {
	pod := addresses("10.244.3.7")[0]
	near := Peer{Name: "near", PodCIDRs: prefixes("10.244.1.0/24")}
	far := Peer{Name: "far", PodCIDRs: prefixes("10.244.3.0/24")}
	p := &Plan{PodCIDRs: far.PodCIDRs, Pods: prefixes("10.244.1.0/24", "10.244.3.0/24"), Routes: map[netip.Prefix]Route{
		near.PodCIDRs[0]: {Dst: near.PodCIDRs[0], Via: addresses("10.244.1.0")[0], By: WayWireGuard},
	}}
	e := p.AddEgress(State{Self: far, Peers: []Peer{near, far}}, map[netip.Addr]EgressPod{pod: {Node: "far", Addr: addresses("192.0.2.200")[0], Gateway: "near"}})
	if len(e.Unroutable) != 1 || len(p.Problems) != 1 {
		t.Errorf("by WireGuard: %+v, %v", e, p.Problems)
	}
}

// TestEgressOfOthers: a node that says that another's pod is its own changes nothing for it.
func TestEgressOfOthers(t *testing.T) {
	self := Peer{Name: "a", PodCIDRs: prefixes("10.244.1.0/24")}
	p := &Plan{PodCIDRs: self.PodCIDRs, Pods: prefixes("10.244.1.0/24", "10.244.2.0/24"), Routes: map[netip.Prefix]Route{}}
	e := p.AddEgress(State{Self: self, Peers: []Peer{self, {Name: "b", Addrs: addresses("192.0.2.7"), PodCIDRs: prefixes("10.244.2.0/24", "10.9.0.0/24")}}}, map[netip.Addr]EgressPod{
		netip.MustParseAddr("10.244.1.7"): {Node: "b", Addr: addresses("192.0.2.200")[0], Gateway: "a"}, // a's
		netip.MustParseAddr("10.9.0.7"):   {Node: "b", Addr: addresses("192.0.2.200")[0], Gateway: "a"}, // its podCIDR is not accepted
		netip.MustParseAddr("10.244.2.7"): {Node: "b", Addr: addresses("192.0.2.200")[0], Gateway: "a"},
		netip.MustParseAddr("10.244.2.8"): {Node: "b", Addr: addresses("192.0.2.7")[0], Gateway: "b"}, // a node's own
		netip.MustParseAddr("10.244.2.9"): {Node: "b", Addr: addresses("192.0.2.201")[0]},             // no node announces it
	})
	if want := map[netip.Addr]bool{addresses("192.0.2.200")[0]: true}; !maps.Equal(e.Addrs, want) {
		t.Errorf("egress addresses %v, want %v", e.Addrs, want)
	}
	if got := slices.Collect(maps.Keys(e.Here)); len(got) != 1 || got[0].String() != "10.244.2.7" || len(e.Unroutable) != 2 {
		t.Errorf("here: %v, nobody: %v", got, e.Unroutable)
	}
}

// TestGatewayOfAnotherFamily: by WireGuard a node with podCIDRs of IPv6 only is no gateway for those that have both, and the event says
// why; one with both is.
func TestGatewayOfAnotherFamily(t *testing.T) {
	pod := netip.MustParseAddr("fd00:10:244:1::7")
	for _, test := range []struct{ cidrs, want string }{
		{"fd00:10:244:2::/64", "it has no podCIDR of IPv4, between which the tunnel inside of WireGuard leads"},
		{"10.244.2.0/24 fd00:10:244:2::/64", ""},
	} {
		c := testState()
		c.Way, c.Key, c.Departed = WayWireGuard, Key{1}, nil
		c.Self = Peer{Name: "self", Created: born(1), Addrs: addresses("192.0.2.1", "2001:db8::1"), PodCIDRs: prefixes("10.244.1.0/24", "fd00:10:244:1::/64")}
		gateway := Peer{Name: "gateway", Created: born(2), Addrs: addresses("192.0.2.2", "2001:db8::2"), PodCIDRs: prefixes(strings.Fields(test.cidrs)...), Key: Key{2}}
		c.Peers = []Peer{c.Self, gateway}
		p := Make(c)
		e := p.AddEgress(c, map[netip.Addr]EgressPod{pod: {Node: "self", Addr: addresses("2001:db8::200")[0], Gateway: "gateway"}})
		got := ""
		for _, problem := range p.Problems {
			got += problem.Reason + " " + problem.Node + " " + problem.Message
		}
		refused := slices.Equal(e.Unroutable, []netip.Addr{pod})
		if refused != (test.want != "") || !strings.Contains(got, test.want) || (got == "") != (test.want == "") || test.want != "" && !strings.HasPrefix(got, ReasonGateway+" gateway ") {
			t.Errorf("%s: refused %t, problems %q", test.cidrs, refused, got)
		}
	}
}
