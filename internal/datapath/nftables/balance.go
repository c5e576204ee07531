package nftables

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"

	"github.com/fairway-net/fairway/internal/service"
)

// A slot is one place of a frontend's list: the endpoint in it, with its weight as the
// Table has it. An invalid address is a place that should be filled and is not.
type slot struct {
	ip           netip.Addr
	port, weight uint16
}

func slotOf(e service.Endpoint) slot { return slot{e.Addr.Addr(), e.Addr.Port(), e.Weight} }

func (s slot) addr() netip.AddrPort { return netip.AddrPortFrom(s.ip, s.port) }

// fill returns the slots for eps, given those that there are. Each endpoint has as many
// as its weight asks for. All but Maglev's ring keep an endpoint where it is, so that a
// change writes as many slots as endpoints changed.
func fill(was []slot, eps []service.Endpoint, balance service.Algorithm) []slot {
	eps = eps[:min(len(eps), maxSlots)]
	switch {
	case len(eps) == 0:
		return nil
	case balance == service.Maglev:
		return ring(eps)
	}
	return assign(was, eps, shares(eps))
}

// maxShares is about how many slots a list has in which weights have no small common
// measure: a share is exact to 1/4096 of all.
const maxShares = 4096

// shares returns how many slots each endpoint gets.
func shares(eps []service.Endpoint) []int {
	n := make([]int, len(eps))
	measure, total := 0, 0
	for i, e := range eps {
		n[i] = max(int(e.Weight), 1)
		measure = gcd(n[i], measure)
		total += n[i]
	}
	total /= measure
	for i := range n {
		n[i] /= measure
		if total > max(maxShares, len(eps)) {
			n[i] = max(n[i]*maxShares/total, 1)
		}
	}
	return n
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// assign gives each endpoint its number of slots: those it has, as far as they are in
// range and not too many, then the first free ones, in turns.
func assign(was []slot, eps []service.Endpoint, shares []int) []slot {
	total := 0
	for _, n := range shares {
		total += n
	}
	total = min(total, maxSlots)
	is := make([]slot, total)
	left := shares
	if len(was) > 0 {
		at := make(map[netip.AddrPort]int, len(eps))
		for i, e := range eps {
			at[e.Addr] = i
		}
		for i := range min(total, len(was)) {
			if e, ok := at[was[i].addr()]; ok && left[e] > 0 {
				is[i] = slotOf(eps[e]) // with the weight that it has now
				left[e]--
			}
		}
	}
	for free, again := 0, true; again; {
		again = false
		for i, e := range eps {
			for free < total && is[free].ip.IsValid() {
				free++
			}
			if free == total {
				return is
			}
			if left[i] > 0 {
				is[free] = slotOf(e)
				left[i]--
				again = true
			}
		}
	}
	return is
}

// ringSizes are the sizes of Maglev's rings, primes. With at least slotsEach slots for
// each endpoint, shares are even to a few percent. The first does for 31 endpoints, so
// that most Services never change the size, which moves nearly all clients.
var ringSizes = [...]int{251, 1021, 4093, 16381, 65521}

const slotsEach = 8

// ring fills a ring as Maglev does (Eisenbud et al., NSDI 2016, section 3.4): each
// endpoint has a preference order of all slots, and in turns each takes the first one
// that is free, the less often the smaller its weight. Every node computes the same.
func ring(eps []service.Endpoint) []slot {
	size := ringSizes[len(ringSizes)-1]
	for _, s := range ringSizes {
		if s >= slotsEach*len(eps) {
			size = s
			break
		}
	}
	eps = eps[:min(len(eps), size)]
	heaviest := 1
	for _, e := range eps {
		heaviest = max(heaviest, int(e.Weight))
	}
	type turn struct{ next, skip, credit int }
	turns := make([]turn, len(eps))
	for i, e := range eps {
		start, skip := preference(e.Addr)
		// In the first round everyone has a turn, so that everyone has a slot.
		turns[i] = turn{int(start % uint64(size)), int(skip%uint64(size-1)) + 1, heaviest - max(int(e.Weight), 1)}
	}
	is := make([]slot, size)
	for filled := 0; ; {
		for i, e := range eps {
			t := &turns[i]
			if t.credit += max(int(e.Weight), 1); t.credit < heaviest {
				continue
			}
			t.credit -= heaviest
			for is[t.next].ip.IsValid() {
				t.next = (t.next + t.skip) % size
			}
			is[t.next] = slotOf(e)
			if filled++; filled == size {
				return is
			}
		}
	}
}

// preference returns two numbers that stand for an endpoint's order of all slots.
func preference(a netip.AddrPort) (start, skip uint64) {
	key := binary.BigEndian.AppendUint16(a.Addr().AsSlice(), a.Port())
	h := fnv.New128a()
	_, _ = h.Write(key) // it never fails
	sum := h.Sum(nil)
	return mix(binary.BigEndian.Uint64(sum[:8])), mix(binary.BigEndian.Uint64(sum[8:]))
}

// mix spreads a number's bits over all of it (the end of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
