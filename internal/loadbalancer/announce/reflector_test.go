package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// reflectors is what a node does for others, a line for each session with a reflector, and for each node it speaks for.
func (d BGPDecision) reflectors() string {
	var lines []string
	for _, s := range d.Sessions {
		if s.Reflected {
			lines = append(lines, fmt.Sprintf("%s at %s from %s AS %d, %d routes, BFD %t", s.Peer, s.Address, s.Source, s.LocalASN, len(s.Routes), s.BFD != BFD{}))
		}
	}
	if r := d.Reflector; r != nil {
		lines = append(lines, fmt.Sprintf("reflects AS %d", r.ASN))
		for _, c := range r.Clients {
			lines = append(lines, fmt.Sprintf("%s at %s %v BFD %t", c.Peer, c.Address.Addr(), c.PodCIDRs, c.BFD != BFD{}))
		}
	}
	for _, p := range d.Problems {
		lines = append(lines, p.Peer+": "+p.Reason)
	}
	return strings.Join(lines, "\n")
}

// TestReflectors: who speaks with whom, and for which podCIDRs, as node-2 sees it.
func TestReflectors(t *testing.T) {
	label := func(in *BGPInput, node int, asn string) {
		in.Nodes[node].Labels = map[string]string{ReflectorLabel: asn}
	}
	for name, c := range map[string]struct {
		change func(*BGPInput)
		want   string
	}{
		"nobody": {func(*BGPInput) {}, ""},
		"another": {func(in *BGPInput) { label(in, 0, "64512") },
			"Node.node-1 at 172.18.0.11:10283 from 172.18.0.12 AS 64512, 2 routes, BFD true"},
		"another, without routers": {func(in *BGPInput) { label(in, 0, "64512"); in.Peers = nil },
			"Node.node-1 at 172.18.0.11:10283 from 172.18.0.12 AS 64512, 2 routes, BFD true"},
		"two others of two AS": {func(in *BGPInput) { label(in, 0, "64512"); label(in, 2, "4200000000") },
			"Node.node-1 at 172.18.0.11:10283 from 172.18.0.12 AS 64512, 2 routes, BFD true\nNode.node-3 at 172.18.0.13:10283 from 172.18.0.12 AS 4200000000, 2 routes, BFD true"},
		"IPv6 alone": {func(in *BGPInput) { label(in, 0, "64512"); in.Nodes[0].Addrs = in.Nodes[0].Addrs[1:] },
			"Node.node-1 at [fd00::11]:10283 from fd00::12 AS 64512, 2 routes, BFD true"},
		"in another network": {func(in *BGPInput) { label(in, 0, "64512"); in.OnLink = func(netip.Addr) bool { return false } }, ""},
		"in another network, without routers": {func(in *BGPInput) {
			label(in, 0, "64512")
			in.Peers, in.OnLink = nil, func(netip.Addr) bool { return false }
		}, "Node.node-1: the route reflector is in none of this node's networks [label a node there with " + ReflectorLabel + "]"},
		"itself": {func(in *BGPInput) { label(in, 1, "64512") },
			"reflects AS 64512\nNode.node-1 at 172.18.0.11 [10.244.0.0/24 fd00:10:244::/64] BFD true\nNode.node-3 at 172.18.0.13 [10.244.2.0/24 fd00:10:244:2::/64] BFD true"},
		"itself and another": {func(in *BGPInput) { label(in, 1, "64512"); label(in, 2, "64512") },
			"Node.node-3 at 172.18.0.13:10283 from 172.18.0.12 AS 64512, 2 routes, BFD true\nreflects AS 64512\nNode.node-1 at 172.18.0.11 [10.244.0.0/24 fd00:10:244::/64] BFD true\nNode.node-3 at 172.18.0.13 [10.244.2.0/24 fd00:10:244:2::/64] BFD false"},
		"a podCIDR of two": {func(in *BGPInput) {
			label(in, 1, "64512")
			in.Nodes[0].PodCIDRs = append(in.Nodes[0].PodCIDRs, netip.MustParsePrefix("10.244.2.0/25"), netip.MustParsePrefix("10.0.0.0/8"))
			in.Nodes[0].Created = time.Unix(1, 0)
		}, "reflects AS 64512\nNode.node-1 at 172.18.0.11 [10.244.0.0/24 fd00:10:244::/64] BFD true\nNode.node-3 at 172.18.0.13 [10.244.2.0/24 fd00:10:244:2::/64] BFD true"},
		"a joining node's podCIDR in the nodes' network": {func(in *BGPInput) {
			label(in, 1, "64512")
			in.Nodes[2].PodCIDRs, in.Nodes[2].Created = []netip.Prefix{netip.MustParsePrefix("172.18.0.0/28")}, time.Unix(1, 0)
		}, "reflects AS 64512\nNode.node-1 at 172.18.0.11 [10.244.0.0/24 fd00:10:244::/64] BFD true\nNode.node-3 at 172.18.0.13 [] BFD true"},
		"another's address": {func(in *BGPInput) { label(in, 1, "64512"); in.Nodes[2].Addrs = in.Nodes[0].Addrs },
			"reflects AS 64512\nNode.node-1 at 172.18.0.11 [10.244.0.0/24 fd00:10:244::/64 10.244.2.0/24 fd00:10:244:2::/64] BFD true"},
		"no ASN": {func(in *BGPInput) { label(in, 1, "yes") },
			"Node.node-2: label " + ReflectorLabel + ": \"yes\" is no ASN [a number from 1 to 4294967295, such as 64512]"},
	} {
		in := bgpWorld(t)
		in.OnLink, in.ReflectorPort = func(netip.Addr) bool { return true }, 10283
		for i := range in.Nodes {
			in.Nodes[i].PodCIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", i))}
		}
		c.change(&in)
		in.PodCIDRs = in.Nodes[1].PodCIDRs
		d := DecideBGP(in)
		if got := d.reflectors(); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, c.want)
		}
		for _, s := range d.Sessions {
			if s.Reflected && slices.ContainsFunc(s.Routes, func(r Route) bool { return len(r.Services) > 0 }) {
				t.Errorf("%s: %s is told of Services", name, s.Peer)
			}
		}
	}
}
