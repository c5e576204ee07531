package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Random events; between every two tables the steps are gone. Each is a table that holds
// each key once and has for it what one of the two tables has, and the steps end, at the
// second table.
func TestStep(t *testing.T) {
	rng := testnet.Random(t)
	waits, late := 0, 0
	for range 60 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		r := scenario.NewRandom(rng)
		r.Services = 4
		state := scenario.NewState(r.Node())
		last := state.Table()
		for range 25 {
			for range 1 + rng.IntN(8) {
				state.Apply(r.Event())
			}
			to := state.Table()
			steps, idle := 0, 0
			for from := last; from != to; steps++ {
				next := service.Step(from, to, 1+rng.IntN(12), steps)
				late += checkStep(t, from, to, next)
				if idle++; next == to || text(next) != text(from) || text(from) == text(to) {
					idle = 0
				}
				if idle > 64*r.Services { // the turn of each Service, of 64 steps, may have come
					t.Fatalf("%d steps change nothing", idle)
				}
				if from = next; steps > 500 {
					t.Fatal("the steps do not end")
				}
			}
			waits += max(0, steps-1)
			if text(to) != text(state.Table()) {
				t.Fatal("a step changed the table that it goes to")
			}
			last = to
		}
	}
	if waits < 1000 || late == 0 {
		t.Errorf("%d tables were on the way, %d frontends waited for another Service: too few", waits, late)
	}
}

// checkStep returns how many frontends are in neither place yet: another Service has the key
// in from.
func checkStep(t *testing.T, from, to, next *service.Table) (late int) {
	t.Helper()
	was, is := byKey(t, from), byKey(t, to)
	for k, f := range byKey(t, next) {
		if f != was[k] && f != is[k] {
			ofIts := func(o *service.Frontend) *service.Frontend { // a key may go from one Service to another
				if o != nil && o.Service.Name == f.Service.Name {
					return o
				}
				return nil
			}
			checkSplit(t, f, ofIts(was[k]), ofIts(is[k]))
		}
		delete(is, k)
	}
	for k, f := range is {
		if old := was[k]; old != nil && old.Service.Name != f.Service.Name {
			late++
		}
	}
	return late
}

// checkSplit checks a frontend that is in neither table: it is between the two.
func checkSplit(t *testing.T, f, old, new *service.Frontend) {
	t.Helper()
	if old == nil && new == nil {
		t.Fatalf("%v is in neither table", f.Key())
	}
	routes := func(f *service.Frontend) [2]*service.Route {
		if f == nil {
			return [2]*service.Route{{}, {}}
		}
		return [2]*service.Route{f.Internal, f.External}
	}
	was, is := routes(old), routes(new)
	for i, r := range routes(f) {
		if r == was[i] || r == is[i] {
			continue
		}
		if r.Action == service.Forward && len(r.Endpoints) == 0 {
			t.Fatalf("%v has no endpoint on the way", f.Key())
		}
		for _, e := range r.Endpoints {
			if !slices.Contains(was[i].Endpoints, e) && !slices.Contains(is[i].Endpoints, e) {
				t.Fatalf("%v has the endpoint %v, which is in neither table", f.Key(), e)
			}
		}
		for _, e := range is[i].Endpoints {
			has := slices.Contains(r.Endpoints, e)
			if slices.Contains(was[i].Endpoints, e) && !has {
				t.Fatalf("%v lacks the endpoint %v, which both tables have", f.Key(), e)
			}
			if !has && !slices.ContainsFunc(r.Endpoints, func(o service.Endpoint) bool { return o.Addr == e.Addr }) && !slices.Contains(f.Retained, e.Addr) {
				t.Fatalf("%v ends the flows to %v, which it will have", f.Key(), e)
			}
		}
	}
}

func byKey(t *testing.T, table *service.Table) map[service.Key]*service.Frontend {
	t.Helper()
	all := map[service.Key]*service.Frontend{}
	for f := range table.Frontends() {
		if all[f.Key()] != nil {
			t.Fatalf("%v is twice in a table", f.Key())
		}
		all[f.Key()] = f
	}
	return all
}

// A small change is in the first step, however much another Service changes.
func TestStepSmallFirst(t *testing.T) {
	big, small := someService(1), someService(2)
	big.Ports = nil
	for i := range 5000 {
		big.Ports = append(big.Ports, service.Port{Name: fmt.Sprint("p", i), Proto: api.TCP, Port: uint16(1 + i)})
	}
	b := service.NewBuilder()
	from := b.Table(service.Settings{})
	for _, svc := range []*service.Service{big, small} {
		b.Set(service.Compile(svc, hugeSlices(svc.Name, 10), service.Node{Name: "node-1"}))
	}
	to := b.Table(service.Settings{})
	steps := 0
	for at := from; at != to; steps++ {
		next := service.Step(at, to, 1000, steps)
		if n := len(next.Entry(small.Name).Frontends); n != 1 {
			t.Fatalf("step %d has %d frontends of the small Service, want 1", steps, n)
		}
		if n := len(service.Diff(at, next)); n > 1002 {
			t.Fatalf("step %d changes %d frontends", steps, n)
		}
		at = next
	}
	if steps < 5 {
		t.Errorf("%d steps, want at least 5", steps)
	}
}

func addrOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// TestStepSplits: a frontend of many endpoints comes, changes wholly and goes by steps, each of which
// changes a bounded number, and is never without an endpoint until it goes.
func TestStepSplits(t *testing.T) {
	const most = 20
	name := api.Name{Namespace: "ns", Name: "svc-1"}
	table := func(from, to int) *service.Table {
		if from == to {
			return service.NewTable(service.Settings{}, nil)
		}
		r := &service.Route{}
		for i := from; i < to; i++ {
			r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addrOf(i), 80)})
		}
		return service.NewTable(service.Settings{}, []*service.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP,
			Service: api.PortName{Name: name}, Internal: r, External: r}})
	}
	tables := []*service.Table{table(0, 0), table(0, 600), table(200, 800), table(1400, 1800), table(0, 0)}
	for i, to := range tables[1:] {
		at, steps := tables[i], 0
		for ; at != to; steps++ {
			next := service.Step(at, to, most, steps)
			checkStep(t, at, to, next)
			was, is := count(at), count(next)
			if d := is - was; d > 4*most || -d > 4*most+most {
				t.Fatalf("step %d of table %d goes from %d endpoints to %d", steps, i+1, was, is)
			}
			if at = next; steps > 100 {
				t.Fatal("the steps do not end")
			}
		}
		if steps < 5 {
			t.Errorf("table %d: %d steps", i+1, steps)
		}
	}
}

// TestStepInARow: of several Services with many endpoints one has them all before the next begins,
// so that they go through the same numbers of endpoints while there are few; and one that needs
// more steps than it has in a row leaves the others theirs.
func TestStepInARow(t *testing.T) {
	const most, all, large = 20, 600, 6000
	to := func(sizes ...int) *service.Table {
		var fronts []*service.Frontend
		for i, size := range sizes {
			r := &service.Route{}
			for k := range size {
				r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addrOf(k), 80)})
			}
			fronts = append(fronts, &service.Frontend{Addr: netip.AddrPortFrom(addrOf(60_000+i), 80), Proto: api.TCP,
				Service: api.PortName{Name: api.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}}, Internal: r, External: r})
		}
		return service.NewTable(service.Settings{}, fronts)
	}
	steps := func(want *service.Table, look func(begun, done int)) {
		at := service.NewTable(service.Settings{}, nil)
		for turn := 0; at != want; turn++ {
			if turn > 200 {
				t.Fatal("the steps do not end")
			}
			at = service.Step(at, want, most, turn)
			begun, done := 0, 0
			for f := range at.Frontends() {
				switch has := len(f.Internal.Endpoints); {
				case has == len(want.Entry(f.Service.Name).Frontends[0].Internal.Endpoints):
					done++
				case has > 0:
					begun++
				}
			}
			look(begun, done)
		}
	}
	steps(to(all, all, all), func(begun, done int) {
		if begun > 1 {
			t.Errorf("%d Services have some of their endpoints", begun)
		}
	})
	small := false
	steps(to(large, all), func(begun, done int) { small = small || begun == 1 && done == 1 })
	if !small {
		t.Error("a Service waits until one of many more endpoints has all of its own")
	}
}

// TestStepLists: where a frontend's endpoints are all written when one changes, with affinity or in turns, the steps to many
// of them write some times as many, and not the square.
func TestStepLists(t *testing.T) {
	const most = 20
	for _, f := range []service.Frontend{{Affinity: time.Hour}, {Balance: service.RoundRobin}} {
		testStepLists(t, 10_000, most, f)
	}
	testStepLists(t, 1000, most, service.Frontend{}) // in steps of the same size
}

// testStepLists takes the steps to all endpoints of a frontend like f.
func testStepLists(t *testing.T, all, most int, f service.Frontend) {
	r := &service.Route{}
	for i := range all {
		r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addrOf(i), 80)})
	}
	whole := f.Affinity > 0 || f.Balance == service.RoundRobin
	f.Addr, f.Proto, f.Internal, f.External = netip.MustParseAddrPort("10.96.0.1:80"), api.TCP, r, r
	f.Service = api.PortName{Name: api.Name{Namespace: "ns", Name: "svc-1"}}
	to := service.NewTable(service.Settings{}, []*service.Frontend{&f})
	at, written := service.NewTable(service.Settings{}, nil), 0
	for turn := 0; at != to; turn++ {
		next := service.StepLists(at, to, most, turn)
		checkStep(t, at, to, next)
		if is := count(next); whole && is > max(2*count(at), 4*most) || !whole && is > count(at)+4*most {
			t.Fatalf("from %d endpoints to %d", count(at), is)
		}
		written += count(next)
		at = next
	}
	if whole && written > 4*all { // of the last step and those before it; in steps of the same size 625,000
		t.Errorf("%d endpoints are written for %d", written, all)
	}
}

// count is how many endpoints a table of one frontend has.
func count(t *service.Table) (n int) {
	for f := range t.Frontends() {
		n += len(f.Internal.Endpoints)
	}
	return n
}
