package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

func endpointsOf(n int, weights ...uint16) []service.Endpoint {
	var eps []service.Endpoint
	for i := range n {
		e := service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)}
		if len(weights) > 0 {
			e.Weight = weights[i%len(weights)]
		}
		eps = append(eps, e)
	}
	return eps
}

// TestFill: slots have the present weights, and endpoints that stay keep their slots. Package lb tests the rest.
func TestFill(t *testing.T) {
	eps := endpointsOf(6)
	for _, balance := range []service.Algorithm{service.Random, service.RoundRobin, service.SourceHash, service.DestHash} {
		was := fill(nil, eps, balance)
		is := fill(was, slices.Delete(slices.Clone(eps), 1, 2), balance)
		if len(was) != 6 || len(is) != 5 || is[1] == was[1] || slices.Contains(is, was[1]) ||
			is[0] != was[0] || !slices.Equal(is[2:], was[2:5]) {
			t.Errorf("%v: the second left: %v became %v", balance, was, is)
		}
		heavier := slices.Clone(eps)
		heavier[2].Weight = 3
		if is := fill(was, heavier, balance); len(is) != 8 || is[2].weight != 3 || is[2].addr() != was[2].addr() {
			t.Errorf("%v: the third is heavier: %v", balance, is)
		}
	}
	if is := fill(nil, eps, service.Maglev); len(is) != 251 {
		t.Errorf("Maglev's table has %d slots", len(is))
	}
	if is := fill(nil, nil, service.Random); len(is) != 0 {
		t.Errorf("without endpoints there are slots: %v", is)
	}
}
