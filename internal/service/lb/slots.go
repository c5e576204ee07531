package lb

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// MaxSlots is the limit of slots in a list: the kernel's maps name slots by 16 bits.
const MaxSlots = 1<<16 - 1

// Slots returns a list of slots. Each slot has the index of an endpoint, and each endpoint has as many slots as its
// weight asks for. A slot chosen at random therefore respects the weights.
//
// Endpoints keep their slots in was, as far as the list reaches and their number of slots allows. Free slots are filled
// in turns. A change thus writes about as many slots as endpoints changed. An address in was that is invalid, or no
// endpoint any more, is a free slot. Only the first MaxSlots endpoints count. The endpoints are sorted by address, as
// in a Route.
func Slots(was []netip.AddrPort, all []service.Endpoint) []int32 {
	return SlotsAfter(len(was), func(i int) netip.AddrPort { return was[i] }, all)
}

// SlotsAfter is Slots for a caller that stores its list of n addresses in another form.
func SlotsAfter(n int, was func(i int) netip.AddrPort, all []service.Endpoint) []int32 {
	all = all[:min(len(all), MaxSlots)]
	if equalWeights(all) {
		return oneEach(n, was, all)
	}
	left := Shares(all, service.MaxShares)
	total := 0
	for _, n := range left {
		total += n
	}
	slots := make([]int32, min(total, MaxSlots))
	for i := range slots {
		slots[i] = free
	}
	keepSlots(slots[:min(n, len(slots))], was, all, func(e int) bool {
		left[e]--
		return left[e] >= 0
	})
	turns := Turns(left)
	for i := range slots {
		if slots[i] == free {
			slots[i], turns = int32(turns[0]), turns[1:]
		}
	}
	return slots
}

const free = -1

func equalWeights(all []service.Endpoint) bool {
	for i := range all {
		if Weight(all[i]) != Weight(all[0]) {
			return false
		}
	}
	return true
}

// oneEach is SlotsAfter for endpoints of equal weights, the usual case. It needs no shares, because lists of thousands
// of endpoints are computed again for each change.
func oneEach(n int, was func(i int) netip.AddrPort, all []service.Endpoint) []int32 {
	slots, has := make([]int32, len(all)), make([]bool, len(all))
	for i := range slots {
		slots[i] = free
	}
	keepSlots(slots[:min(n, len(slots))], was, all, func(e int) bool {
		had := has[e]
		has[e] = true
		return !had
	})
	next := 0
	for i := range slots {
		if slots[i] != free {
			continue
		}
		for has[next] {
			next++
		}
		slots[i], next = int32(next), next+1
	}
	return slots
}

// keepSlots gives endpoints their previous slots, as long as take allows the endpoint one more slot.
func keepSlots(slots []int32, was func(i int) netip.AddrPort, all []service.Endpoint, take func(e int) bool) {
	next := 0 // the endpoint after that of the previous slot: most lists are sorted, except for a few slots
	for i := range slots {
		at := was(i)
		e, ok := next, next < len(all) && all[next].Addr == at
		if !ok {
			e, ok = slices.BinarySearchFunc(all, at, func(e service.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		}
		if !ok {
			continue
		}
		if next = e + 1; take(e) {
			slots[i] = int32(e)
		}
	}
}
