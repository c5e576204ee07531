package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/scenario"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
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
			steps := 0
			for from := last; from != to; steps++ {
				next := service.Step(from, to, 1+rng.IntN(12))
				late += checkStep(t, from, to, next)
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
			t.Fatalf("%v is in neither table: %+v", k, f)
		}
		delete(is, k)
	}
	for k, f := range is {
		if old := was[k]; old != nil && old.Service.Name != f.Service.Name {
			late++
		}
	}
	if next != to && text(next) == text(from) && text(from) != text(to) {
		t.Fatal("a step changes nothing")
	}
	return late
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
		big.Ports = append(big.Ports, service.Port{Name: fmt.Sprint("p", i), Proto: service.TCP, Port: uint16(1 + i)})
	}
	b := service.NewBuilder()
	from := b.Table(service.Settings{})
	for _, svc := range []*service.Service{big, small} {
		b.Set(service.Compile(svc, hugeSlices(svc.Name, 10), service.Node{Name: "node-1"}))
	}
	to := b.Table(service.Settings{})
	steps := 0
	for at := from; at != to; steps++ {
		next := service.Step(at, to, 1000)
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
