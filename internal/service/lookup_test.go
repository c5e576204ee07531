package service_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// packets returns packets from every kind of client to every frontend, to unused ports, and to addresses of no Service.
func packets(t *service.Table, known map[service.Key]string) (all []scenario.Packet) {
	to := map[service.Key]bool{
		{Addr: netip.MustParseAddrPort("10.96.77.77:80"), Proto: api.TCP}:     true,
		{Addr: netip.MustParseAddrPort("192.0.2.200:80"), Proto: api.UDP}:     true,
		{Addr: netip.MustParseAddrPort("[2001:db8::77]:80"), Proto: api.SCTP}: true,
	}
	w := &scenario.World
	for f := range t.Frontends() {
		addrs := []netip.Addr{f.Addr.Addr()}
		if f.NodePort() {
			addrs = []netip.Addr{w.Node.V4, w.Extra.V4, w.Peer.V4, netip.AddrFrom4([4]byte{127, 0, 0, 1})}
			if f.Addr.Addr().Is6() {
				addrs = []netip.Addr{w.Node.V6, w.Extra.V6, w.Peer.V6, netip.IPv6Loopback()}
			}
		}
		for _, a := range addrs {
			to[service.Key{Addr: netip.AddrPortFrom(a, f.Addr.Port()), Proto: f.Proto}] = true
			to[service.Key{Addr: netip.AddrPortFrom(a, 9), Proto: f.Proto}] = true
		}
	}
	for k := range to {
		is4 := k.Addr.Addr().Is4()
		add := func(place string, a netip.Addr) {
			all = append(all, scenario.Packet{From: scenario.From{Place: place, Addr: a}, To: k.Addr, Proto: k.Proto})
		}
		for _, p := range scenario.Places() {
			add(p.Name, p.Addr(is4))
		}
		for e := range known {
			if a := e.Addr.Addr(); a.Is4() == is4 {
				add(a.String(), a)
			}
		}
	}
	return all
}

// outcome translates a Decision into an Outcome of Predict.
func outcome(d service.Decision) (out scenario.Outcome, known bool) {
	switch {
	case d.Action == service.Pass:
		// No process listens on the node.
		return scenario.Outcome{Action: service.Reject}, d.Packet.ToNode
	case d.Action != service.Forward:
		return scenario.Outcome{Action: d.Action}, true
	}
	for _, e := range d.Route.Endpoints {
		source := scenario.Client
		if d.Masquerades(e) || d.Packet.FromNode {
			source = scenario.Node
		}
		out.Reaches = append(out.Reaches, scenario.Reach{Endpoint: e.Addr, Source: source})
	}
	return out, true
}

// checkLookup compares Lookup with the slow reference, packet by packet.
func checkLookup(t *testing.T, table *service.Table, all []scenario.Packet) {
	t.Helper()
	index := service.NewIndex(table)
	for _, p := range all {
		want, known := scenario.Predict(table, p)
		facts := p.Facts(table)
		d := index.Lookup(facts)
		if slow := service.Lookup(table, facts); slow != d {
			t.Fatalf("from %v to %v/%v: the index says %+v, the table %+v", p.From, p.To, p.Proto, d, slow)
		}
		got, ok := outcome(d)
		agree := ok == known && got.Action == want.Action && slices.EqualFunc(got.Reaches, want.Reaches, func(g, w scenario.Reach) bool {
			return g.Endpoint == w.Endpoint && (g.Source == w.Source || w.Source == scenario.AnySource)
		})
		if !agree {
			t.Fatalf("from %v to %v/%v: %v (%v), known %v; want %v, known %v\n%s", p.From, p.To, p.Proto, got, d.Reason, ok, want, known, table)
		}
	}
}

// Lookup agrees with Predict for every packet of every scenario, and with the scenario's own expectations.
func TestLookupScenarios(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			table := s.Table()
			checkLookup(t, table, packets(table, s.Endpoints()))
			for _, p := range s.Packets {
				if got, ok := outcome(service.Lookup(table, p.Facts(table))); ok && !p.Agrees(got) {
					t.Errorf("packet %s: Lookup says %v", p.Text, got)
				}
			}
		})
	}
}

func TestLookupRandom(t *testing.T) {
	rng := testnet.Random(t)
	for range 20 {
		checkLookupRandom(t, rand.New(rand.NewPCG(rng.Uint64(), 0)))
	}
}

// FuzzLookup searches for a seed for which Lookup and Predict differ.
func FuzzLookup(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkLookupRandom(t, rand.New(rand.NewPCG(seed, 0))) })
}

func checkLookupRandom(t *testing.T, rng *rand.Rand) {
	t.Helper()
	gen := scenario.NewRandom(rng)
	facts := gen.Facts()
	if rng.IntN(3) == 0 {
		facts.Settings.PodInterfaces = []string{"veth*"}
	}
	state := scenario.NewState(facts)
	for range 60 {
		state.Apply(gen.Event())
	}
	known := map[service.Key]string{}
	for i := range gen.Pods {
		for _, is4 := range []bool{true, false} {
			a, on := scenario.PodAddr(i, is4)
			known[service.Key{Addr: netip.AddrPortFrom(a, 1)}] = on
		}
	}
	table := state.Table()
	all := packets(table, known)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	checkLookup(t, table, all[:min(len(all), 2000)])
}

// Each reason once.
func TestLookupReasons(t *testing.T) {
	ap, pre := netip.MustParseAddrPort, netip.MustParsePrefix
	route := func(action service.Action, eps ...string) *service.Route {
		r := &service.Route{Action: action, Masquerade: service.MasqueradeOffCluster}
		for _, e := range eps {
			r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: ap(e), Local: true})
		}
		return r
	}
	front := func(at string, in, out *service.Route) *service.Frontend {
		return &service.Frontend{Addr: ap(at), Proto: api.TCP, Internal: in, External: out}
	}
	forward, none := route(service.Forward, "10.244.1.5:8080"), route(service.Reject)
	cluster, limited := front("10.96.0.1:80", forward, forward), front("203.0.113.1:80", forward, forward)
	cluster.ClusterIP, limited.Sources = true, []netip.Prefix{pre("198.51.100.0/24")}
	onNode := front("172.18.0.12:8443", forward, forward)
	onNode.OnNode = true
	table := service.NewTable(service.Settings{
		Pods: []netip.Prefix{pre("10.244.0.0/16")}, NodePorts: []netip.Prefix{pre("0.0.0.0/0")}, ServiceCIDRs: []netip.Prefix{pre("10.96.0.0/12")},
	}, []*service.Frontend{cluster, limited, onNode, front("10.96.0.2:80", none, none), front("0.0.0.0:30080", forward, route(service.Drop))})
	for _, c := range []struct {
		from, to string
		node     bool
		action   service.Action
		reason   service.Reason
		masq     bool
	}{
		{"10.244.1.9", "10.96.0.1:80", false, service.Forward, service.HasEndpoints, false},
		{"10.244.1.5", "10.96.0.1:80", false, service.Forward, service.HasEndpoints, true}, // hairpin
		{"198.51.100.1", "10.96.0.1:80", false, service.Forward, service.HasEndpoints, true},
		{"10.244.1.9", "10.96.0.2:80", false, service.Reject, service.NoEndpoints, false},
		{"10.244.1.9", "172.18.0.11:30080", true, service.Forward, service.HasEndpoints, false},
		{"198.51.100.1", "172.18.0.11:30080", true, service.Drop, service.NoUsableEndpoints, false},
		{"198.51.100.1", "172.18.0.12:30080", false, service.Pass, service.NotAService, false},
		{"198.51.100.1", "127.0.0.1:30080", true, service.Pass, service.NotAService, false},
		{"10.244.1.9", "203.0.113.1:80", false, service.Drop, service.SourceNotAllowed, false},
		{"10.244.1.9", "10.96.0.1:81", false, service.Reject, service.NoSuchPort, false},
		{"10.244.1.9", "10.97.0.1:80", false, service.Drop, service.UnassignedClusterIP, false},
		{"198.51.100.1", "203.0.113.1:81", false, service.Reject, service.NoSuchPort, false},
		{"10.244.1.9", "203.0.113.1:81", false, service.Reject, service.NoSuchPort, false},
		{"198.51.100.1", "203.0.113.1:81", true, service.Pass, service.NotAService, false}, // the node itself has the address
		{"10.244.1.9", "172.18.0.12:8443", false, service.Forward, service.HasEndpoints, false},
		{"10.244.1.9", "172.18.0.12:22", false, service.Pass, service.NotAService, false}, // another node's address
	} {
		d := service.Lookup(table, service.Packet{From: netip.MustParseAddr(c.from), To: ap(c.to), Proto: api.TCP, ToNode: c.node})
		masq := d.Action == service.Forward && d.Masquerades(d.Route.Endpoints[0])
		if d.Action != c.action || d.Reason != c.reason || masq != c.masq {
			t.Errorf("from %s to %s: %v because %q, masquerade %v; want %v because %q, %v", c.from, c.to, d.Action, d.Reason, masq, c.action, c.reason, c.masq)
		}
	}
}
