package lb

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// MaxSlots is the most slots that a list has: the kernel's maps name them by 16 bits.
const MaxSlots = 1<<16 - 1

// Slots returns a list of slots, each the index of an endpoint, of which each has as many
// as its weight asks for. A slot chosen at random gives endpoints their weights.
//
// Endpoints stay where was has them, as far as the list reaches and they do not have too
// many slots; free slots are filled in turns. So a change writes as many slots as endpoints
// changed. An address in was that is no endpoint, or invalid, is a free slot. Of more than
// MaxSlots endpoints the first are taken. The endpoints are sorted by address, as a Route's are.
func Slots(was []netip.AddrPort, all []service.Endpoint) []int32 {
	return SlotsAfter(len(was), func(i int) netip.AddrPort { return was[i] }, all)
}

// SlotsAfter is Slots for a caller whose list of n addresses is part of something else.
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

// oneEach is SlotsAfter where each endpoint has one slot, as nearly all have, without what shares
// need: a list of tens of thousands is made anew with each change of it.
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

// keepSlots gives endpoints the slots that they had, as long as they may take one more.
func keepSlots(slots []int32, was func(i int) netip.AddrPort, all []service.Endpoint, take func(e int) bool) {
	next := 0 // what follows the endpoint of the slot before: most lists are sorted, but for a few slots
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
