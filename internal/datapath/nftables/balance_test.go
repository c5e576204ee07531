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

// shareOf counts the slots of each endpoint, by its place in eps.
func shareOf(t *testing.T, slots []slot, eps []service.Endpoint) []int {
	t.Helper()
	at := map[slot]int{}
	for i, e := range eps {
		at[slotOf(e)] = i
	}
	n := make([]int, len(eps))
	for i, s := range slots {
		e, ok := at[s]
		if !ok {
			t.Fatalf("slot %d holds %v, which is no endpoint", i, s)
		}
		n[e]++
	}
	return n
}

func moved(a, b []slot) (n int) {
	for i := range min(len(a), len(b)) {
		if a[i].addr() != b[i].addr() {
			n++
		}
	}
	return n
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		n       int
		weights []uint16
		want    []int // of the first endpoints
		slots   int
	}{
		{3, nil, []int{1, 1, 1}, 3},
		{3, []uint16{0, 1, 1}, []int{1, 1, 1}, 3},
		{3, []uint16{100, 200, 300}, []int{1, 2, 3}, 6},
		{2, []uint16{7, 0}, []int{7, 1}, 8},
		{2, []uint16{60000, 40000}, []int{3, 2}, 5},
		{3, []uint16{65535, 65534, 1}, []int{2048, 2047, 1}, 4096},
		{5000, nil, []int{1}, 5000},
		{70000, nil, []int{1}, maxSlots},
		{60000, []uint16{65535, 65534}, []int{1, 1}, 60000},
	} {
		eps := endpointsOf(c.n, c.weights...)
		if c.n > maxSlots {
			eps = endpointsOf(1)
			for i := range c.n - 1 {
				a := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
				eps = append(eps, service.Endpoint{Addr: netip.AddrPortFrom(a, 1)})
			}
		}
		slots := fill(nil, eps, service.Random)
		got := shareOf(t, slots, eps[:min(len(eps), maxSlots)])
		if len(slots) != c.slots || !slices.Equal(got[:len(c.want)], c.want) {
			t.Errorf("%d endpoints of %v: %d slots, %v, want %d, %v", c.n, c.weights, len(slots), got[:len(c.want)], c.slots, c.want)
		}
		if again := fill(slots, eps, service.Random); moved(slots, again) > 0 {
			t.Errorf("%d endpoints of %v: the same again moved %d", c.n, c.weights, moved(slots, again))
		}
	}
}

// TestFillKeeps: an endpoint that stays is not moved.
func TestFillKeeps(t *testing.T) {
	eps := endpointsOf(6)
	was := fill(nil, eps, service.Random)
	if is := fill(was, slices.Delete(slices.Clone(eps), 5, 6), service.Random); moved(was, is) > 0 {
		t.Errorf("without the last: %v", is)
	}
	is := fill(was, slices.Delete(slices.Clone(eps), 1, 2), service.Random)
	if moved(was, is) != 1 || len(is) != 5 {
		t.Errorf("without the second, only its slot is filled anew: %v", is)
	}
	heavier := slices.Clone(eps)
	heavier[2].Weight = 3
	if is := fill(was, heavier, service.Random); moved(was, is) > 0 || len(is) != 8 {
		t.Errorf("with a heavier one: %v", is)
	}
	// Turns: one that has more of them does not have all at once.
	eps = endpointsOf(2, 1, 2)
	if is := fill(nil, eps, service.RoundRobin); is[0] == is[1] {
		t.Errorf("turns are %v", is)
	}
}

// TestRing: shares are even to what the size promises, follow weights, and few clients
// move with an endpoint.
func TestRing(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 31, 32, 500, 3000, 8190} {
		eps := endpointsOf(n)
		is := fill(nil, eps, service.Maglev)
		share := shareOf(t, is, eps)
		if low, high := slices.Min(share), slices.Max(share); low < 1 || high-low > 1 {
			t.Errorf("%d endpoints in %d slots: shares from %d to %d", n, len(is), low, high)
		}
		if n < 3 || n == 32 { // 31 endpoints have another size
			continue
		}
		gone := n / 2
		less := fill(is, slices.Delete(slices.Clone(eps), gone, gone+1), service.Maglev)
		if len(less) != len(is) {
			continue
		}
		// At the least the slots of the one that left; Maglev moves some more.
		if m := moved(is, less); m < share[gone] || m > share[gone]+len(is)/8 {
			t.Errorf("%d endpoints in %d slots: one that left moved %d, its share was %d", n, len(is), m, share[gone])
		}
	}
	for _, weights := range [][]uint16{{1, 3}, {10, 20, 70}, {65535, 1}, {0, 4}} {
		eps := endpointsOf(len(weights), weights...)
		is := fill(nil, eps, service.Maglev)
		total := 0
		for _, w := range weights {
			total += max(int(w), 1)
		}
		for i, got := range shareOf(t, is, eps) {
			if want := max(int(weights[i]), 1) * len(is) / total; got < max(want-2, 1) || got > want+2 {
				t.Errorf("weights %v: endpoint %d has %d of %d slots, want about %d", weights, i, got, len(is), want)
			}
		}
	}
}
