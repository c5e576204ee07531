package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// algorithms: each algorithm of the datapath spreads connections as its name says. The tests of each datapath check the
// algorithms that look at open connections (lc, sed, nq).
func (s suite) algorithms(t testing.TB) {
	r := sixRig(t, s)
	offers := r.dp.Info().Capabilities.Algorithms
	if !offers.Has(service.Random) {
		t.Error("Random is not offered")
	}
	for _, test := range []struct {
		by  service.Algorithm
		run func(*rig, testing.TB)
	}{
		{service.RoundRobin, (*rig).takesTurns}, {service.SourceHash, (*rig).staysBySource},
		{service.DestHash, (*rig).sameForAll}, {service.Maglev, (*rig).movesFew},
	} {
		if offers.Has(test.by) {
			test.run(r, t)
		}
	}
	if s.unsupported["weights"] != "" {
		return
	}
	for _, by := range []service.Algorithm{service.Random, service.RoundRobin} {
		if offers.Has(by) {
			r.weighs(t, by)
		}
	}
}

// balanced syncs a table of one Service, and returns the address of the Service.
func (r *rig) balanced(t testing.TB, by service.Algorithm, weights []uint16, which ...int) netip.AddrPort {
	t.Helper()
	at := fmt.Sprintf("10.96.1.%d:80", 1+by)
	f := web("balanced", at, api.TCP, which...)
	f.Balance = by
	for i, w := range weights {
		f.Internal.Endpoints[i].Weight = w
	}
	table := tableOf(f)
	report(t, r.sync(table))
	if err := r.checkSynced(table); err != nil {
		t.Errorf("%v: %v", by, err)
	}
	return f.Addr
}

// ask sends requests one after the other, and returns the endpoint that answered each.
func (r *rig) ask(t testing.TB, client *testnet.Host, at netip.AddrPort, times int) (by []netip.AddrPort) {
	t.Helper()
	for range times {
		got := client.Ask("tcp", at, r.suite.patience)
		if got.Outcome != testnet.Answered {
			t.Fatalf("%s to %v: %v", client.Name, at, got)
		}
		by = append(by, got.At)
	}
	return by
}

// clients returns the clients that get their replies from every endpoint.
func (r *rig) clients() []*testnet.Host {
	w := &scenario.World
	all := []*testnet.Host{r.node, r.hosts[w.Pod.V4], r.hosts[w.Peer.V4], r.hosts[w.Outside.V4]}
	for _, e := range six() {
		if e.Local {
			all = append(all, r.hosts[e.Addr.Addr()])
		}
	}
	return all
}

// takesTurns: endpoints answer equally often in a row of connections.
func (r *rig) takesTurns(t testing.TB) {
	at := r.balanced(t, service.RoundRobin, nil, 0, 1, 2)
	const rounds = 8
	count := map[netip.AddrPort]int{}
	for _, by := range r.ask(t, r.hosts[scenario.World.Pod.V4], at, 3*rounds) {
		count[by]++
	}
	for _, e := range six()[:3] {
		if n := count[e.Addr]; n < rounds-1 || n > rounds+1 {
			t.Errorf("rr: %v got %d of %d connections", e.Addr, n, 3*rounds)
		}
	}
}

// homes returns each client's endpoint, and checks that the client stays there over many ports.
func (r *rig) homes(t testing.TB, at netip.AddrPort) (homes []netip.AddrPort) {
	t.Helper()
	for _, c := range r.clients() {
		all := r.ask(t, c, at, 6)
		if slices.ContainsFunc(all, func(a netip.AddrPort) bool { return a != all[0] }) {
			t.Errorf("%s to %v does not stay: %v", c.Name, at, all)
		}
		homes = append(homes, all[0])
	}
	return homes
}

func (r *rig) staysBySource(t testing.TB) {
	homes := r.homes(t, r.balanced(t, service.SourceHash, nil, 0, 1, 2, 3, 4, 5))
	if slices.Max(indexes(homes)) == slices.Min(indexes(homes)) {
		t.Errorf("sh: all clients are at %v", homes[0])
	}
}

func (r *rig) sameForAll(t testing.TB) {
	homes := r.homes(t, r.balanced(t, service.DestHash, nil, 0, 1, 2, 3, 4, 5))
	if slices.Max(indexes(homes)) != slices.Min(indexes(homes)) {
		t.Errorf("dh: one address leads to %v", homes)
	}
}

// movesFew: when an endpoint leaves, its clients move, and few others do. A hash modulo the number of endpoints would
// move five of six clients.
func (r *rig) movesFew(t testing.TB) {
	before := r.homes(t, r.balanced(t, service.Maglev, nil, 0, 1, 2, 3, 4, 5))
	gone := slices.Index(indexes(six1()), indexes(before[:1])[0])
	var left []int
	for i := range six() {
		if i != gone {
			left = append(left, i)
		}
	}
	after := r.homes(t, r.balanced(t, service.Maglev, nil, left...))
	moved := 0
	for i := range after {
		switch {
		case before[i] == before[0] && after[i] == before[0]:
			t.Errorf("maglev: a client stays at %v, which has left", after[i])
		case before[i] != before[0] && after[i] != before[i]:
			moved++
		}
	}
	if moved > len(after)/3 {
		t.Errorf("maglev: %d of %d clients moved whose endpoint stayed", moved, len(after))
	}
}

// weighs: one of two endpoints gets three times as many connections. With 400 connections a choice by weight is outside
// of 63 to 95 percent once in 10^7. A choice without weights is inside as rarely.
func (r *rig) weighs(t testing.TB, by service.Algorithm) {
	at := r.balanced(t, by, []uint16{1, 3}, 0, 2)
	heavy := web("x", "10.96.1.1:80", api.TCP, 0, 2).Internal.Endpoints[1].Addr
	const total = 400
	n := 0
	for _, a := range r.ask(t, r.hosts[scenario.World.Pod.V4], at, total) {
		if a == heavy {
			n++
		}
	}
	if n < total*63/100 || n > total*95/100 {
		t.Errorf("%v: an endpoint of weight 3 beside one of 1 got %d of %d", by, n, total)
	}
}

// six1 returns the addresses of six.
func six1() (all []netip.AddrPort) {
	for _, e := range six() {
		all = append(all, e.Addr)
	}
	return all
}

// indexes returns the indexes of addresses in six.
func indexes(all []netip.AddrPort) (out []int) {
	for _, a := range all {
		out = append(out, slices.Index(six1(), a))
	}
	return out
}

// counted: a datapath that counts traffic counts all of it.
func (s suite) counted(t testing.TB) {
	r := sixRig(t, s)
	f := web("a", "10.96.0.1:80", api.TCP, 0, 1)
	report(t, r.sync(tableOf(f, web("b", "10.96.0.2:80", api.TCP, 0))))
	counts := func() (all map[api.PortName]datapath.Count) {
		report(t, r.node.Do(func() (err error) { all, err = r.dp.Counts(context.Background()); return err }))
		return all
	}
	before := counts()
	const times = 5
	if r.dp.Info().Capabilities.Counts&datapath.CountsConnections == 0 {
		for name, c := range before {
			if c.Connections > 0 {
				t.Errorf("%v has %d connections, which Info says are not counted", name, c.Connections)
			}
		}
		return
	}
	r.ask(t, r.hosts[scenario.World.Pod.V4], f.Addr, times)
	until := time.Now().Add(s.patience)
	for {
		after := counts()
		quiet := api.PortName{Name: api.Name{Namespace: "default", Name: "b"}}
		a, b := after[f.Service], after[quiet]
		if b.Connections != before[quiet].Connections {
			t.Fatalf("a Service without connections counts %+v", b)
		}
		// Some datapaths count packets only when a connection ends.
		n := a.Connections - before[f.Service].Connections
		if n == times || n == 0 && a.Packets > before[f.Service].Packets {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("after %d connections: %+v, before %+v", times, a, before[f.Service])
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
}
