package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// born is when the n-th node of a test was made.
func born(n int) time.Time { return time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC) }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// testState is a cluster of the nodes self (the third), old and older, and a joining one.
func testState(joining ...string) clusterState {
	peer := func(n int, name, addr, cidr4, cidr6 string) Peer {
		return Peer{Name: name, Created: born(n), Addrs: addresses(addr, fmt.Sprintf("2001:db8::%d", n)), PodCIDRs: prefixes(cidr4, cidr6)}
	}
	c := clusterState{
		self: peer(3, "self", "192.0.2.3", "10.244.3.0/24", "fd00:10:244:3::/64"),
		peers: []Peer{
			peer(1, "older", "192.0.2.1", "10.244.1.0/24", "fd00:10:244:1::/64"),
			peer(2, "old", "192.0.2.2", "10.244.2.0/24", "fd00:10:244:2::/64"),
			{Name: "new", Created: born(9), Addrs: addresses("192.0.2.9", "2001:db8::9"), PodCIDRs: prefixes(joining...)},
		},
		networks:     []onLink{{netip.MustParsePrefix("192.0.2.0/24"), 1}, {netip.MustParsePrefix("2001:db8::/64"), 1}},
		gateways:     addresses("192.0.2.254"),
		serviceCIDRs: prefixes("10.96.0.0/16", "fd00:96::/112"),
		apiServers:   addresses("198.51.100.6", "2001:db8:1::6"),
	}
	c.peers = append(c.peers, c.self)
	return c
}

var bothCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/48")

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
				c.clusterCIDRs, want = bothCIDRs, test.configured
			}
			p := makePlan(c)
			cidr := netip.MustParsePrefix(test.cidr)
			_, routed := p.routes[cidr]
			switch {
			case want == "" && (!routed || len(p.problems) > 0):
				t.Errorf("%s, cluster CIDR known %t: refused: %v", cidr, known, p.problems)
			case want != "" && (routed || slices.Contains(p.pods, cidr) || len(p.problems) != 1 || !strings.Contains(p.problems[0].message, want)):
				t.Errorf("%s, cluster CIDR known %t: route %t, problems %v, want %q", cidr, known, routed, p.problems, want)
			case want != "" && (p.problems[0].node != "new" || p.problems[0].reason != reasonPodCIDR):
				t.Errorf("%s: problem %+v, want one of node new", cidr, p.problems[0])
			}
			if len(p.routes) != 6+min(1, len(p.routes)-6) || len(p.podCIDRs) != 2 {
				t.Errorf("%s disturbed other nodes: %v", cidr, p.routes)
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
		c.peers, c.clusterCIDRs = test.peers, bothCIDRs
		for range 2 {
			var got []string
			for dst, r := range makePlan(c).routes {
				if r.via.IsValid() {
					got = append(got, fmt.Sprintf("%s via %s", dst, r.via))
				}
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("%s: routes %q, want %q", test.name, got, test.want)
			}
			slices.Reverse(c.peers)
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
		c.clusterCIDRs, c.self.PodCIDRs = bothCIDRs, prefixes(test.cidr)
		p := makePlan(c)
		if test.want == "" && (len(p.podCIDRs) != 1 || len(p.problems) > 0) {
			t.Errorf("own podCIDR %s is refused: %v", test.cidr, p.problems)
		}
		if test.want != "" && (len(p.podCIDRs) > 0 || len(p.problems) != 1 || !strings.Contains(p.problems[0].message, test.want)) {
			t.Errorf("own podCIDR %s: own %v, problems %v; want %q", test.cidr, p.podCIDRs, p.problems, test.want)
		}
	}
}

// TestClaimedAddresses: a node may claim any address as its own. One that no link leads to is
// masqueraded to, and takes no podCIDR from another node; nor does the API server's EndpointSlice.
func TestClaimedAddresses(t *testing.T) {
	c := testState()
	c.clusterCIDRs = bothCIDRs
	c.peers[0].Addrs = append(addresses("10.244.2.7", "8.8.8.8"), c.peers[0].Addrs...)
	c.apiServers = addresses("10.244.1.9")
	p := makePlan(c)
	if len(p.problems) > 0 || p.routes[netip.MustParsePrefix("10.244.2.0/24")].via != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("the podCIDR of node old: %v, problems %v", p.routes, p.problems)
	}
	if want := addresses("192.0.2.3", "2001:db8::3", "192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2", "192.0.2.9", "2001:db8::9"); !slices.Equal(p.nodes, want) {
		t.Errorf("addresses that are not masqueraded to: %v, want %v", p.nodes, want)
	}
}

// TestClaimedPods: the oldest node, whose kubelet is another's now, says that addresses of younger nodes' pods are its
// own, or that a younger node's key is. It takes nothing from them, and nothing leads to such an address.
func TestClaimedPods(t *testing.T) {
	for _, way := range []Way{WayVXLAN, WayWireGuard, WayBGP, WayAuto} {
		for _, first := range []bool{true, false} {
			c := testState("10.244.9.0/24")
			c.clusterCIDRs, c.way, c.networks = bothCIDRs, way, nil
			for i := range c.peers {
				c.peers[i].Key = Key{byte(i + 1)}
			}
			want := makePlan(c)
			claimed := addresses("10.244.9.7", "10.244.2.1", "fd00:10:244:2::7")
			if liar := &c.peers[0]; first {
				liar.Addrs = append(claimed, liar.Addrs...)
			} else {
				liar.Addrs = append(slices.Clone(liar.Addrs), claimed...)
			}
			got := makePlan(c)
			for _, cidr := range prefixes("10.244.9.0/24", "10.244.2.0/24", "fd00:10:244:2::/64") {
				if got.routes[cidr] != want.routes[cidr] {
					t.Errorf("%s, first %t: %s goes %+v, want %+v", way, first, cidr, got.routes[cidr], want.routes[cidr])
				}
			}
			for _, a := range claimed {
				if got.tunnel != nil && slices.Contains(got.tunnel.nodes, a) {
					t.Errorf("%s, first %t: the tunnel leads to %s", way, first, a)
				}
				for _, peer := range peersOf(got.wg) {
					if peer.endpoint.Addr() == a {
						t.Errorf("%s, first %t: WireGuard leads to %s", way, first, a)
					}
				}
			}
		}
	}
}

func peersOf(w *wireGuard) map[Key]*wgWanted {
	if w == nil {
		return nil
	}
	return w.peers
}

// TestStolenKey: a node that says another's WireGuard key is its own takes nothing where that node's key is in
// use, whichever of them is older.
func TestStolenKey(t *testing.T) {
	c := testState()
	c.clusterCIDRs, c.way = bothCIDRs, WayWireGuard
	c.peers[0].Key, c.peers[1].Key = Key{1}, Key{2}
	before := makePlan(c)
	c.allowedIPs = map[Key][]netip.Prefix{{1}: before.wg.peers[Key{1}].allowed, {2}: before.wg.peers[Key{2}].allowed}
	c.peers[0].Key = Key{2}
	after := makePlan(c)
	if got, want := after.wg.peers[Key{2}], before.wg.peers[Key{2}]; got == nil || got.endpoint != want.endpoint || !slices.Equal(got.allowed, want.allowed) {
		t.Errorf("the key leads to %+v, want %+v", got, want)
	}
	if len(after.problems) == 0 || !strings.Contains(after.problems[0].message, "which is in use there") {
		t.Errorf("problems: %+v", after.problems)
	}
	// The node with the key has gone: it is the other's.
	c.peers = append(c.peers[:1], c.peers[2:]...)
	if gone := makePlan(c); gone.wg.peers[Key{2}] == nil || len(gone.problems) > 0 {
		t.Errorf("without the other node: %+v, problems %+v", gone.wg.peers, gone.problems)
	}
}

// TestRoguePodCIDRs: no route to what is not a node's appears in the kernel, the log, the
// metric and events say so once, and all is well when the node has gone.
func TestRoguePodCIDRs(t *testing.T) {
	for _, configured := range []bool{true, false} {
		t.Run(fmt.Sprintf("cluster CIDR configured: %t", configured), func(t *testing.T) {
			c := newCluster(t, 2, dual)
			m := c.machines[0]
			registry := prometheus.NewRegistry()
			var events []string
			m.config.Registry = registry
			m.config.Event = func(node, reason, _ string) { events = append(events, reason+" "+node) }
			m.config.APIServers = func() []netip.Addr { return []netip.Addr{outside4} }
			m.config.ServiceCIDRs = func() []netip.Prefix { return prefixes("10.96.0.0/16") }
			if configured {
				m.config.ClusterCIDRs = bothCIDRs
			}
			m.restart()
			m.mustSync(c.peers())
			want := m.routes()
			rogues := c.peers()
			for i, cidr := range []string{"8.8.8.8/32", "8.8.8.0/24", outside4.String() + "/32", "192.0.2.96/28", "10.244.2.128/25", "10.244.1.0/28", "10.96.4.0/24", "2001:db8::98/126"} {
				rogues = append(rogues, Peer{Name: fmt.Sprintf("rogue-%d", i), Created: born(i), Addrs: addresses(fmt.Sprintf("192.0.2.%d", 60+i), fmt.Sprintf("2001:db8::%d", 60+i)), PodCIDRs: prefixes(cidr)})
			}
			for range 2 {
				m.mustSync(rogues)
			}
			if got := m.routes(); got != want {
				t.Errorf("routes:\n%s\nwant:\n%s", got, want)
			}
			if got := m.log.Count(" is not used: "); got != 8 || len(events) != 8 || events[0] != "PodCIDRRefused rogue-0" {
				t.Errorf("%d lines and events %q, want one for each of 8 nodes", got, events)
			}
			if got := refusedMetric(t, registry); got != 8 {
				t.Errorf("the metric counts %v refused podCIDRs, want 8", got)
			}
			m.mustSync(c.peers())
			if got := refusedMetric(t, registry); got != 0 {
				t.Errorf("the metric counts %v refused podCIDRs after the nodes have gone", got)
			}
		})
	}
}

func refusedMetric(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "fairway_pod_network_problems" && m.GetLabel()[0].GetValue() == reasonPodCIDR {
				return m.GetGauge().GetValue()
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal("the metric does not count refused podCIDRs")
	return 0
}

// BenchmarkPlan is of a cluster of 5,000 nodes, in the worst order.
func BenchmarkPlan(b *testing.B) {
	c := testState()
	c.peers = nil
	for i := range 5000 {
		j := 4999 - i
		c.peers = append(c.peers, Peer{
			Name: fmt.Sprintf("peer-%05d", i), Created: born(i),
			Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(2 + i/200), byte(i%200 + 1)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + j/256), byte(j), 0}), 24)},
		})
	}
	for b.Loop() {
		makePlan(c)
	}
}
