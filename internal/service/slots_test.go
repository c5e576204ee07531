package service_test

import (
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// Slots have a limit, not only endpoints. Weights, Maglev's tables and addresses multiply the slots, and a mode in the
// kernel has an element for each slot.
func TestSlotsAreLimited(t *testing.T) {
	facts := service.Facts{Node: service.Node{Limits: service.DefaultLimits()}}
	tests := map[string]struct {
		ports, externals, endpoints int
		change                      func(*service.Service, []*service.Slice)
		slots                       int // upper limit; 0 means as many as endpoints
		reasons                     string
		balance                     service.Algorithm
	}{
		"weights of few ports":  {8, 0, 2, unequal, 8 * 4096, "", service.Random},
		"weights of many ports": {5000, 0, 2, unequal, 45_000, "", service.Random},
		"maglev":                {150, 0, 20, maglev, 150 * 251, "", service.Maglev},
		"maglev of many ports":  {5000, 0, 2, maglev, 10_000, "TooManySlots", service.SourceHash},
		"addresses":             {1, 499, 10_000, nil, 40_000, "TooManySlots", service.Random},
		"a list of weights":     {1, 0, 2000, unequal, 2000, "TooManySlots", service.Random},
		"a large table":         {1, 0, 2000, maglev, 16_381, "", service.Maglev},
		"a larger table":        {1, 0, 3000, maglev, 3000, "TooManySlots", service.SourceHash},
		"within":                {1, 3, 10_000, nil, 40_000, "", service.Random},
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
			e := service.Compile(svc, eps, facts)
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

// slotsOf returns the number of slots in a frontend's list.
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
