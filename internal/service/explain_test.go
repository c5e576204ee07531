package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// checkExplain compares what Explain says of a Service with what Compile makes of it: the
// endpoints that are Used are the routes', and every endpoint is explained once per port.
func checkExplain(svc *service.Service, eps []*service.Slice, facts service.Facts) error {
	entry := service.Compile(svc, eps, facts)
	all := service.Explain(svc, eps, facts, entry)
	ports := map[api.PortName]bool{}
	for _, f := range entry.Frontends {
		ports[f.Service] = true
		for _, internal := range []bool{true, false} {
			route := f.External
			if internal {
				route = f.Internal
			}
			var want, got []netip.AddrPort
			for _, e := range route.Endpoints {
				want = append(want, e.Addr)
			}
			for _, x := range all {
				if x.Service == f.Service && x.Proto == f.Proto && x.Addr.Addr().Is4() == f.Addr.Addr().Is4() && x.At(f, internal) == service.Used {
					got = append(got, x.Addr)
				}
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%v, internal %v: the route has %v, explained as used are %v of %+v", f.Key(), internal, want, got, all)
			}
		}
	}
	n := 0
	for _, s := range eps {
		n += len(s.Endpoints)
	}
	if len(all) != n*len(ports) {
		return fmt.Errorf("%d endpoints at %d ports, %d explanations: %+v", n, len(ports), len(all), all)
	}
	return nil
}

// In all scenarios and in all orders, what is explained as used is what the routes have.
func TestExplainOrders(t *testing.T) {
	rng := testnet.Random(t)
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			for name, events := range s.Orders(rng) {
				state := scenario.NewState(s.Facts)
				for i, e := range events {
					state.Apply(e)
					if !e.Flush && i < len(events)-1 {
						continue
					}
					if err := state.Each(checkExplain); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
		})
	}
}

func TestExplainRandom(t *testing.T) {
	rng := testnet.Random(t)
	for range 40 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		gen := scenario.NewRandom(rng)
		state := scenario.NewState(gen.Facts())
		for range 60 {
			state.Apply(gen.Event())
			if err := state.Each(checkExplain); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Each exclusion once, by hand.
func TestExplainReasons(t *testing.T) {
	name := api.Name{Namespace: "default", Name: "web"}
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, n}) }
	ready := func(n byte, node string) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: addr(n), Node: node, Ready: true, Serving: true}
	}
	with := func(e service.SliceEndpoint, change func(*service.SliceEndpoint)) service.SliceEndpoint {
		change(&e)
		return e
	}
	type ep = service.SliceEndpoint
	plain := service.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}, Ports: []service.Port{{Name: "http", Proto: api.TCP, Port: 80}}}
	local, weighted := plain, plain
	local.ExternalLocal, weighted.Weighted = true, true
	http := []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}}
	for _, c := range []struct {
		svc       service.Service
		ports     []service.SlicePort
		endpoints []ep
		want      service.Exclusion // of the last, for external traffic
	}{
		{plain, http, []ep{ready(1, "node-1")}, service.Used},
		{plain, http, []ep{{Ready: true}}, service.InvalidAddress},
		{plain, http, []ep{with(ready(1, "node-1"), func(e *ep) { e.Addr = netip.MustParseAddr("fd00::1") })}, service.OtherFamily},
		{plain, nil, []ep{ready(1, "node-1")}, service.NoSuchPortInSlice},
		{plain, http, []ep{ready(1, "node-1"), with(ready(1, "node-1"), func(e *ep) { e.Terminating = true })}, service.SameAddress},
		{local, http, []ep{ready(1, "node-2")}, service.OtherNode},
		{local, http, []ep{ready(1, "")}, service.UnknownNode},
		{plain, http, []ep{with(ready(1, "node-1"), func(e *ep) { e.Ready = false })}, service.NotReady},
		{plain, http, []ep{with(ready(1, "node-1"), func(e *ep) { e.Ready, e.Serving, e.Terminating = false, false, true })}, service.NotServing},
		{plain, http, []ep{with(ready(1, "node-1"), func(e *ep) { e.Ready, e.Terminating = false, true })}, service.Used},
		{plain, http, []ep{ready(1, "node-1"), with(ready(2, "node-1"), func(e *ep) { e.Ready, e.Terminating = false, true })}, service.TerminatingSpare},
		{plain, http, []ep{with(ready(1, ""), func(e *ep) { e.NodeHints = []string{"node-1"} }), with(ready(2, ""), func(e *ep) { e.NodeHints = []string{"node-2"} })}, service.HintOtherNode},
		{plain, http, []ep{with(ready(1, ""), func(e *ep) { e.ZoneHints = []string{"a"} }), with(ready(2, ""), func(e *ep) { e.ZoneHints = []string{"b"} })}, service.HintOtherZone},
		{weighted, http, []ep{ready(1, ""), with(ready(2, ""), func(e *ep) { e.HasWeight = true })}, service.ZeroWeight},
		{weighted, http, []ep{with(ready(2, ""), func(e *ep) { e.HasWeight = true })}, service.Used},
	} {
		slice := &service.Slice{Name: name, Service: name, Ports: c.ports, Endpoints: c.endpoints}
		facts := service.Facts{Node: service.Node{Name: "node-1", Zone: "a"}}
		if err := checkExplain(&c.svc, []*service.Slice{slice}, facts); err != nil {
			t.Error(err)
		}
		all := service.Explain(&c.svc, []*service.Slice{slice}, facts, &service.Entry{})
		if last := all[len(all)-1]; last.External != c.want || last.Slice != name || last.Node != c.endpoints[len(c.endpoints)-1].Node {
			t.Errorf("%+v: %+v, want %q", c.endpoints, last, c.want)
		}
	}
}
