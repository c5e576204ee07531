package networkpolicy

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// disjoint returns segments that do not overlap and decide the same. The first segment with a port decides, but a
// segment of all protocols decides alone.
func disjoint(all []Segment) []Segment {
	byProto := map[api.Proto][]Segment{}
	for _, s := range all {
		if s.Proto == 0 {
			return []Segment{{Last: 65535, Rule: s.Rule}}
		}
		byProto[s.Proto] = append(byProto[s.Proto], s)
	}
	var out []Segment
	for proto, some := range byProto {
		out = append(out, paint(proto, some)...)
	}
	slices.SortFunc(out, compareSegments)
	return out
}

// paint gives each port to the first segment with it. It walks once through the sorted ends of the segments, so wide
// segments cost no more than narrow ones.
func paint(proto api.Proto, some []Segment) (out []Segment) {
	if len(some) == 1 {
		return some
	}
	order := make([]int, len(some)) // by where they begin
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(some[a].First, some[b].First) })
	var open indexHeap // segments that have begun; an ended segment leaves when it is first
	for port := uint32(0); len(order) > 0 || len(open) > 0; {
		if len(open) == 0 {
			port = max(port, uint32(some[order[0]].First))
		}
		for len(order) > 0 && uint32(some[order[0]].First) <= port {
			heap.Push(&open, order[0])
			order = order[1:]
		}
		now := some[open[0]]
		if uint32(now.Last) < port {
			heap.Pop(&open)
			continue
		}
		last := uint32(now.Last)
		if len(order) > 0 {
			last = min(last, uint32(some[order[0]].First)-1)
		}
		if n := len(out); n > 0 && uint32(out[n-1].Last)+1 == port && out[n-1].Rule == now.Rule {
			out[n-1].Last = uint16(last)
		} else {
			out = append(out, Segment{proto, uint16(port), uint16(last), now.Rule})
		}
		port = last + 1
	}
	return out
}

// An indexHeap has the lowest index first.
type indexHeap []int

func (h indexHeap) Len() int           { return len(h) }
func (h indexHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h indexHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *indexHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *indexHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
