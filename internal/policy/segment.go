package policy

import (
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// disjoint returns segments that do not overlap and allow the same. The rule that comes first
// decides; one that allows everything decides alone.
func disjoint(all []Segment) []Segment {
	byProto := map[service.Proto][]Segment{}
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

// paint gives each port to the first segment that has it. Each port is looked at once, however
// many segments have it.
func paint(proto service.Proto, some []Segment) (out []Segment) {
	if len(some) == 1 {
		return some
	}
	rules := map[uint32]RuleID{}
	next := map[uint32]uint32{} // the first port behind one that may be free
	free := func(port uint32) uint32 {
		last := port
		for n, ok := next[last]; ok; n, ok = next[last] {
			last = n
		}
		for port != last {
			port, next[port] = next[port], last
		}
		return last
	}
	for _, s := range some {
		for port := free(uint32(s.First)); port <= uint32(s.Last); port = free(port) {
			rules[port], next[port] = s.Rule, port+1
		}
	}
	ports := make([]uint32, 0, len(rules))
	for p := range rules {
		ports = append(ports, p)
	}
	slices.Sort(ports)
	for _, p := range ports {
		if n := len(out); n > 0 && uint32(out[n-1].Last)+1 == p && out[n-1].Rule == rules[p] {
			out[n-1].Last = uint16(p)
			continue
		}
		out = append(out, Segment{proto, uint16(p), uint16(p), rules[p]})
	}
	return out
}
