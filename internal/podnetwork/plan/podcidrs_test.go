package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// testState is a cluster of the nodes self (the third), old and older, and a joining one.
func testState(joining ...string) State {
	peer := func(n int, name, addr, cidr4, cidr6 string) Peer {
		return Peer{Name: name, Created: born(n), Addrs: addresses(addr, fmt.Sprintf("2001:db8::%d", n)), PodCIDRs: prefixes(cidr4, cidr6)}
	}
	c := State{
		Self: peer(3, "self", "192.0.2.3", "10.244.3.0/24", "fd00:10:244:3::/64"),
		Peers: []Peer{
			peer(1, "older", "192.0.2.1", "10.244.1.0/24", "fd00:10:244:1::/64"),
			peer(2, "old", "192.0.2.2", "10.244.2.0/24", "fd00:10:244:2::/64"),
			{Name: "new", Created: born(9), Addrs: addresses("192.0.2.9", "2001:db8::9"), PodCIDRs: prefixes(joining...)},
		},
		Networks:     []OnLink{{netip.MustParsePrefix("192.0.2.0/24"), 1}, {netip.MustParsePrefix("2001:db8::/64"), 1}},
		Gateways:     addresses("192.0.2.254"),
		ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:96::/112"),
		APIServers:   addresses("198.51.100.6", "2001:db8:1::6"),
	}
	c.Peers = append(c.Peers, c.Self)
	return c
}

// TestJoiningPodCIDR: what a joining node may have as its podCIDR, where the cluster CIDR is
// configured and where it is not. want is empty where it may.
func TestJoiningPodCIDR(t *testing.T) {
	for _, test := range []struct{ cidr, configured, unknown string }{
		{"10.244.9.0/24", "", ""},
		{"fd00:10:244:9::/64", "", ""},
		{"10.245.9.0/24", "not inside the cluster CIDR 10.244.0.0/16 [", ""},
		{"fd00:10:245:9::/64", "not inside the cluster CIDR fd00:10:244::/48 [", ""},
		{"10.244.0.0/16", "overlaps 10.244.1.0/24 of node older", "overlaps 10.244.1.0/24 of node older"},
		{"10.240.0.0/12", "not inside the cluster CIDR", "wider than /16"},
		{"fd00:10::/32", "not inside the cluster CIDR", "wider than /48"},
		{"8.8.8.8/32", "no room for pods", "no room for pods"},
		{"8.8.8.0/24", "not inside the cluster CIDR", "not private, as this node's is"},
		{"2a00::/64", "not inside the cluster CIDR", "not private, as this node's is"},
		{"198.51.100.6/32", "contains the API server's address 198.51.100.6", "contains the API server's address 198.51.100.6"},
		{"198.51.100.0/24", "contains the API server's address", "contains the API server's address"},
		{"2001:db8:1::/64", "contains the API server's address", "contains the API server's address"},
		{"192.0.2.252/30", "contains the address of this node's gateway 192.0.2.254", "contains the address of this node's gateway 192.0.2.254"},
		{"192.0.2.2/32", "contains the address of node old: 192.0.2.2", "contains the address of node old: 192.0.2.2"},
		{"192.0.2.0/30", "contains the address of node older: 192.0.2.1", "contains the address of node older: 192.0.2.1"},
		{"192.0.2.3/32", "contains this node's address 192.0.2.3", "contains this node's address 192.0.2.3"},
		{"192.0.2.8/29", "contains the address of node new: 192.0.2.9", "contains the address of node new: 192.0.2.9"},
		{"10.244.1.128/25", "overlaps 10.244.1.0/24 of node older", "overlaps 10.244.1.0/24 of node older"},
		{"10.244.3.64/26", "overlaps 10.244.3.0/24 of node self", "overlaps 10.244.3.0/24 of node self"},
		{"10.244.2.0/23", "overlaps 10.244.2.0/24 of node old", "overlaps 10.244.2.0/24 of node old"},
		{"fd00:10:244:1:8000::/65", "overlaps fd00:10:244:1::/64 of node older", "overlaps fd00:10:244:1::/64 of node older"},
		{"10.96.7.0/24", "overlaps the ServiceCIDR 10.96.0.0/16", "overlaps the ServiceCIDR 10.96.0.0/16"},
		{"fd00:96::/64", "overlaps the ServiceCIDR fd00:96::/112", "overlaps the ServiceCIDR fd00:96::/112"},
		{"127.0.0.0/24", "no hosts'", "no hosts'"},
		{"169.254.169.0/24", "no hosts'", "no hosts'"},
		{"224.0.0.0/24", "no hosts'", "no hosts'"},
		{"fe80::/64", "no hosts'", "no hosts'"},
		{"ff02::/64", "no hosts'", "no hosts'"},
		{"0.0.0.0/0", "contains every address", "contains every address"},
		{"::/0", "contains every address", "contains every address"},
		{"128.0.0.0/1", "contains", "contains"},
	} {
		for _, known := range []bool{true, false} {
			c, want := testState(test.cidr), test.unknown
			if known {
				c.ClusterCIDRs, want = bothCIDRs, test.configured
			}
			p := Make(c)
			cidr := netip.MustParsePrefix(test.cidr)
			_, routed := p.Routes[cidr]
			switch {
			case want == "" && (!routed || len(p.Problems) > 0):
				t.Errorf("%s, cluster CIDR known %t: refused: %v", cidr, known, p.Problems)
			case want != "" && (routed || slices.Contains(p.Pods, cidr) || len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, want)):
				t.Errorf("%s, cluster CIDR known %t: route %t, problems %v, want %q", cidr, known, routed, p.Problems, want)
			case want != "" && (p.Problems[0].Node != "new" || p.Problems[0].Reason != ReasonPodCIDR):
				t.Errorf("%s: problem %+v, want one of node new", cidr, p.Problems[0])
			}
			if len(p.Routes) != 6+min(1, len(p.Routes)-6) || len(p.PodCIDRs) != 2 {
				t.Errorf("%s disturbed other nodes: %v", cidr, p.Routes)
			}
		}
	}
}

// TestOlderNodeKeepsItsPodCIDR whatever order the nodes come in and whatever their names are,
// and a node that is made again has it back when nobody else took it.
func TestOlderNodeKeepsItsPodCIDR(t *testing.T) {
	node := func(name, addr string, created time.Time, cidr string) Peer {
		return Peer{Name: name, Created: created, Addrs: addresses(addr), PodCIDRs: prefixes(cidr)}
	}
	const cidr = "10.244.1.0/24"
	honest, rogue := node("z", "192.0.2.1", born(1), cidr), node("a", "192.0.2.66", born(2), "10.244.1.0/25")
	again := honest
	again.Created = born(3)
	for _, test := range []struct {
		name  string
		peers []Peer
		want  string
	}{
		{"the older node", []Peer{honest, rogue}, "10.244.1.0/24 via 192.0.2.1"},
		{"the rogue's list comes first", []Peer{rogue, honest}, "10.244.1.0/24 via 192.0.2.1"},
		{"the node is made again, and nobody took it", []Peer{again}, "10.244.1.0/24 via 192.0.2.1"},
		{"the node is made again, with another address", []Peer{node("z", "192.0.2.7", born(3), cidr)}, "10.244.1.0/24 via 192.0.2.7"},
		{"the node is made again after another took it", []Peer{again, rogue}, "10.244.1.0/25 via 192.0.2.66"},
		{"of the same age: the first name", []Peer{honest, node("y", "192.0.2.8", born(1), cidr)}, "10.244.1.0/24 via 192.0.2.8"},
	} {
		c := testState()
		c.Peers, c.ClusterCIDRs = test.peers, bothCIDRs
		for range 2 {
			var got []string
			for dst, r := range Make(c).Routes {
				if r.Via.IsValid() {
					got = append(got, fmt.Sprintf("%s via %s", dst, r.Via))
				}
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("%s: routes %q, want %q", test.name, got, test.want)
			}
			slices.Reverse(c.Peers)
		}
	}
}

// TestOwnPodCIDR: a node whose podCIDR an older one has carries no pods with it, because
// all others route it to the older one. What only an operator can judge is left alone.
func TestOwnPodCIDR(t *testing.T) {
	for _, test := range []struct {
		cidr, want string
	}{
		{"10.244.7.0/24", ""},
		{"10.99.0.0/24", ""}, // outside of the cluster CIDR
		{"10.96.0.0/24", ""}, // a ServiceCIDR
		{"10.244.0.0/15", "overlaps 10.244.1.0/24 of node older"},
		{"10.244.1.0/24", "overlaps 10.244.1.0/24 of node older"},
		{"192.0.2.0/29", "contains this node's address 192.0.2.3"},
	} {
		c := testState()
		c.ClusterCIDRs, c.Self.PodCIDRs = bothCIDRs, prefixes(test.cidr)
		p := Make(c)
		if test.want == "" && (len(p.PodCIDRs) != 1 || len(p.Problems) > 0) {
			t.Errorf("own podCIDR %s is refused: %v", test.cidr, p.Problems)
		}
		if test.want != "" && (len(p.PodCIDRs) > 0 || len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, test.want)) {
			t.Errorf("own podCIDR %s: own %v, problems %v; want %q", test.cidr, p.PodCIDRs, p.Problems, test.want)
		}
	}
}

// TestClaimedAddresses: a node may claim any address as its own. One that no link leads to is
// masqueraded to, and takes no podCIDR from another node; nor does the API server's EndpointSlice.
func TestClaimedAddresses(t *testing.T) {
	c := testState()
	c.ClusterCIDRs = bothCIDRs
	c.Peers[0].Addrs = append(addresses("10.244.2.7", "8.8.8.8"), c.Peers[0].Addrs...)
	c.APIServers = addresses("10.244.1.9")
	p := Make(c)
	if len(p.Problems) > 0 || p.Routes[netip.MustParsePrefix("10.244.2.0/24")].Via != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("the podCIDR of node old: %v, problems %v", p.Routes, p.Problems)
	}
	if want := addresses("192.0.2.3", "2001:db8::3", "192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2", "192.0.2.9", "2001:db8::9"); !slices.Equal(p.Nodes, want) {
		t.Errorf("addresses that are not masqueraded to: %v, want %v", p.Nodes, want)
	}
}

// TestClaimedPods: the oldest node, whose kubelet is another's now, says that addresses of younger nodes' pods are its
// own, or that a younger node's key is. It takes nothing from them, and nothing leads to such an address.
func TestClaimedPods(t *testing.T) {
	for _, way := range []Way{WayVXLAN, WayWireGuard, WayBGP, WayAuto} {
		for _, first := range []bool{true, false} {
			c := testState("10.244.9.0/24")
			c.ClusterCIDRs, c.Way, c.Networks = bothCIDRs, way, nil
			for i := range c.Peers {
				c.Peers[i].Key = Key{byte(i + 1)}
			}
			want := Make(c)
			claimed := addresses("10.244.9.7", "10.244.2.1", "fd00:10:244:2::7")
			if liar := &c.Peers[0]; first {
				liar.Addrs = append(claimed, liar.Addrs...)
			} else {
				liar.Addrs = append(slices.Clone(liar.Addrs), claimed...)
			}
			got := Make(c)
			for _, cidr := range prefixes("10.244.9.0/24", "10.244.2.0/24", "fd00:10:244:2::/64") {
				if got.Routes[cidr] != want.Routes[cidr] {
					t.Errorf("%s, first %t: %s goes %+v, want %+v", way, first, cidr, got.Routes[cidr], want.Routes[cidr])
				}
			}
			for _, a := range claimed {
				if got.Tunnel != nil && slices.Contains(got.Tunnel.Nodes, a) {
					t.Errorf("%s, first %t: the tunnel leads to %s", way, first, a)
				}
				for _, peer := range peersOf(got.WireGuard) {
					if peer.Endpoint.Addr() == a {
						t.Errorf("%s, first %t: WireGuard leads to %s", way, first, a)
					}
				}
			}
		}
	}
}

func peersOf(w *WireGuard) map[Key]*WireGuardPeer {
	if w == nil {
		return nil
	}
	return w.Peers
}

// TestStolenKey: a node that says another's WireGuard key is its own takes nothing where that node's key is in
// use, whichever of them is older.
func TestStolenKey(t *testing.T) {
	c := testState()
	c.ClusterCIDRs, c.Way = bothCIDRs, WayWireGuard
	c.Peers[0].Key, c.Peers[1].Key = Key{1}, Key{2}
	before := Make(c)
	c.AllowedIPs = map[Key][]netip.Prefix{{1}: before.WireGuard.Peers[Key{1}].Allowed, {2}: before.WireGuard.Peers[Key{2}].Allowed}
	c.Peers[0].Key = Key{2}
	after := Make(c)
	if got, want := after.WireGuard.Peers[Key{2}], before.WireGuard.Peers[Key{2}]; got == nil || got.Endpoint != want.Endpoint || !slices.Equal(got.Allowed, want.Allowed) {
		t.Errorf("the key leads to %+v, want %+v", got, want)
	}
	if len(after.Problems) == 0 || !strings.Contains(after.Problems[0].Message, "which is in use there") {
		t.Errorf("problems: %+v", after.Problems)
	}
	// The node with the key has gone: it is the other's.
	c.Peers = append(c.Peers[:1], c.Peers[2:]...)
	if gone := Make(c); gone.WireGuard.Peers[Key{2}] == nil || len(gone.Problems) > 0 {
		t.Errorf("without the other node: %+v, problems %+v", gone.WireGuard.Peers, gone.Problems)
	}
}

// BenchmarkPlan is of a cluster of 5,000 nodes, in the worst order.
func BenchmarkPlan(b *testing.B) {
	c := testState()
	c.Peers = nil
	for i := range 5000 {
		j := 4999 - i
		c.Peers = append(c.Peers, Peer{
			Name: fmt.Sprintf("peer-%05d", i), Created: born(i),
			Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(2 + i/200), byte(i%200 + 1)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + j/256), byte(j), 0}), 24)},
		})
	}
	for b.Loop() {
		Make(c)
	}
}
