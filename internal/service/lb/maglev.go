package lb

import (
	"container/heap"
	"encoding/binary"
	"hash/fnv"
	"net/netip"

	"github.com/fairway-net/fairway/internal/service"
)

// Maglev returns Maglev's lookup table (Eisenbud et al., NSDI 2016, section 3.4). Each slot has the index of an
// endpoint; without endpoints the table is empty. Each endpoint has its own order of all slots. The endpoints take
// turns, and each takes its first free slot; endpoints with small weights have fewer turns. If an endpoint leaves, its
// own clients move, and few others.
//
// The result depends only on the endpoints, which are sorted by address. Every node and every mode computes the same
// table, also after a restart.
func Maglev(all []service.Endpoint) []int32 {
	if len(all) == 0 {
		return nil
	}
	size := service.MaglevSlots(len(all))
	all = all[:min(len(all), size)]
	heaviest := 1
	for _, e := range all {
		heaviest = max(heaviest, Weight(e))
	}
	turns := make(maglevTurns, len(all))
	for i, e := range all {
		start, skip := preference(e.Addr)
		// In the first round each endpoint has a turn, so that each has a slot.
		turns[i] = maglevTurn{
			index: i, weight: Weight(e),
			slot: int(start % uint64(size)), skip: int(skip%uint64(size-1)) + 1,
		}
	}
	table := make([]int32, size)
	for i := range table {
		table[i] = free
	}
	for range table { // turns is already a heap: all are in round 0, sorted by index
		t := &turns[0]
		for table[t.slot] != free {
			t.slot = (t.slot + t.skip) % size
		}
		table[t.slot] = int32(t.index)
		t.slots++
		t.round = (t.slots*heaviest + t.weight - 1) / t.weight
		heap.Fix(&turns, 0)
	}
	return table
}

// A maglevTurn is the next turn of an endpoint. The heaviest endpoint has a turn in every round. Another endpoint has
// its nth turn in the first round by which it has earned n turns.
type maglevTurn struct {
	index, weight int
	slot, skip    int // the next slot to try, and the distance to the slot after it
	slots         int // number of slots so far
	round         int // round of the next turn
}

// maglevTurns is a heap; the next turn is first.
type maglevTurns []maglevTurn

func (t maglevTurns) Len() int      { return len(t) }
func (t maglevTurns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t maglevTurns) Less(i, j int) bool {
	return t[i].round < t[j].round || t[i].round == t[j].round && t[i].index < t[j].index
}

// Push and Pop implement heap.Interface. Nobody calls them: the number of endpoints is constant.
func (t maglevTurns) Push(any) {}

// Pop implements heap.Interface.
func (t maglevTurns) Pop() any { return nil }

// preference returns two numbers that define an endpoint's order of all slots.
func preference(a netip.AddrPort) (start, skip uint64) {
	h := fnv.New128a()
	_, _ = h.Write(binary.BigEndian.AppendUint16(a.Addr().AsSlice(), a.Port())) // it never fails
	sum := h.Sum(nil)
	return mix(binary.BigEndian.Uint64(sum[:8])), mix(binary.BigEndian.Uint64(sum[8:]))
}

// mix spreads a number's bits over all of it (the end of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
