package conformance

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// flushed: another program empties the kernel's ruleset, like a firewall that is reloaded. A new instance writes all
// rules again. The old instance notices the flush with its next write at the latest, and succeeds when it tries again.
func (s suite) flushed(t testing.TB) {
	r := sixRig(t, s)
	one := tableOf(web("a", "10.96.0.1:80", api.TCP, 0, 1), web("b", "10.96.0.2:80", api.TCP, 2))
	two := tableOf(web("a", "10.96.0.1:80", api.TCP, 0, 3), web("b", "10.96.0.2:80", api.TCP, 2))
	flush := func() { r.output("nft flush ruleset") }
	check := func(when string, table *service.Table) {
		t.Helper()
		if err := r.checkSynced(table); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		report(t, r.packets(r.everywhere(table)))
	}
	report(t, r.sync(one))
	intact := func(when string, want bool) {
		t.Helper()
		var drift datapath.Drift
		report(t, r.node.Do(func() (err error) { drift, err = r.dp.Check(t.Context()); return err }))
		if drift.Any() == want {
			t.Errorf("%s: Check says %+v, want intact %v", when, drift, want)
		}
	}
	intact("after a Sync", true)
	r.output("nft add table inet somebody")
	intact("after a change of another table", true)
	flush()
	intact("after a flush", false)
	report(t, r.sync(one))
	check("the same instance after a flush and a Check", one)
	intact("after it was put right", true)

	flush()
	r.reopen()
	report(t, r.sync(one))
	check("a new instance after a flush", one)

	flush()
	err := r.sync(two)
	for tries := 0; err != nil && tries < 3; tries++ {
		err = r.sync(two)
	}
	report(t, err)
	check("the same instance after a flush and a change", two)
}

// wide: a Service with very many endpoints grows and shrinks by all of them.
func (s suite) wide(t testing.TB) {
	r := newRig(t, s, "node-1", nil)
	for _, n := range []int{500, 3, 499, 1, 0, 2} {
		route := &service.Route{Action: service.Reject}
		if n > 0 {
			route = &service.Route{}
		}
		for i := range n {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(i / 250), byte(1 + i%250)})
			route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addr, 80), Local: i%3 == 0})
		}
		table := tableOf(&service.Frontend{
			Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP, Internal: route, External: route,
			Service: api.PortName{Name: api.Name{Namespace: "default", Name: "wide"}, Port: "http"},
		})
		if err := r.sync(table); err != nil {
			report(t, fmt.Errorf("%d endpoints: %w", n, err))
			continue
		}
		report(t, r.checkSynced(table))
	}
}
