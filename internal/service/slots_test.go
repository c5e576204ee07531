package service_test

import (
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// Slots are bounded, not endpoints alone: weights, Maglev's tables and addresses multiply them, and a
// mode in the kernel has an element for each.
func TestSlotsAreLimited(t *testing.T) {
	node := service.Node{Limits: service.DefaultLimits()}
	tests := map[string]struct {
		ports, externals, endpoints int
		change                      func(*service.Service, []*service.Slice)
		slots                       int // at most; 0: as many as endpoints
		reasons                     string
		balance                     service.Algorithm
	}{
		"weights of few ports":  {10, 0, 2, unequal, 10 * 4096, "", service.Random},
		"weights of many ports": {5000, 0, 2, unequal, 260_000, "", service.Random},
		"maglev":                {900, 0, 20, maglev, 900 * 251, "", service.Maglev},
		"maglev of many ports":  {5000, 0, 2, maglev, 10_000, "TooManySlots", service.SourceHash},
		"addresses":             {1, 499, 50_000, nil, 250_000, "TooManySlots", service.Random},
		"a list of weights":     {1, 0, 2000, unequal, 2000, "TooManySlots", service.Random},
		"a large table":         {1, 0, 600, maglev, 600, "TooManySlots", service.SourceHash},
		"within":                {1, 3, 50_000, nil, 200_000, "", service.Random},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			svc := greedy(1, test.ports, test.externals, 0)
			eps := portSlices(svc, test.endpoints)
			for _, s := range eps {
				for i := range s.Endpoints {
					s.Endpoints[i].Ready = true
				}
			}
			if test.change != nil {
				test.change(svc, eps)
			}
			e := service.Compile(svc, eps, node)
			var reasons []string
			for _, p := range e.Problems {
				reasons = append(reasons, p.Reason)
			}
			slots := 0
			for _, f := range e.Frontends {
				if slots += slotsOf(f); f.Balance != test.balance || len(f.Internal.Endpoints) == 0 {
					t.Fatalf("%v is balanced by %v over %d endpoints, want by %v", f.Key(), f.Balance, len(f.Internal.Endpoints), test.balance)
				}
			}
			if got := strings.Join(reasons, " "); got != test.reasons || slots > test.slots || slots < test.slots/2 {
				t.Errorf("%d slots, want at most %d; problems %v, want %q", slots, test.slots, e.Problems, test.reasons)
			}
		})
	}
}

// slotsOf is how many slots the list of a frontend has.
func slotsOf(f *service.Frontend) (n int) {
	if f.Balance == service.Maglev {
		return service.MaglevSlots(len(f.Internal.Endpoints))
	}
	for _, e := range f.Internal.Endpoints {
		n += max(int(e.Weight), 1)
	}
	return n
}

// unequal gives endpoints weights that need very many slots.
func unequal(svc *service.Service, eps []*service.Slice) {
	svc.Weighted = true
	for _, s := range eps {
		for i := range s.Endpoints {
			s.Endpoints[i].HasWeight, s.Endpoints[i].Weight = true, uint16(1+4094*i)
		}
	}
}

func maglev(svc *service.Service, _ []*service.Slice) {
	svc.Balanced, svc.Balance = true, service.Maglev
}

// A step counts slots, not endpoints: one that changes may write them all.
func TestStepCountsSlots(t *testing.T) {
	for name, change := range map[string]func(*service.Service, []*service.Slice){"weights": unequal, "maglev": maglev} {
		svc := greedy(1, 50, 0, 0)
		eps := portSlices(svc, 2)
		for _, s := range eps {
			for i := range s.Endpoints {
				s.Endpoints[i].Ready = true
			}
		}
		change(svc, eps)
		b := service.NewBuilder()
		from := b.Table(service.Settings{})
		b.Set(service.Compile(svc, eps, service.Node{Limits: service.DefaultLimits()}))
		to := b.Table(service.Settings{})
		steps := 0
		for ; from != to; steps++ {
			from = service.Step(from, to, 500, steps)
		}
		if steps < 25 {
			t.Errorf("%s: %d steps for 50 frontends", name, steps)
		}
	}
}
