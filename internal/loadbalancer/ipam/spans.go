package ipam

import (
	"net/netip"
	"slices"
)

// spans is a set of addresses as sorted ranges that neither overlap nor touch.
type spans []Range

// at returns the index of the range with a, or of the first range after a.
func (s spans) at(a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(s, a, func(r Range, a netip.Addr) int {
		switch {
		case r.Last.Less(a):
			return -1
		case a.Less(r.First):
			return 1
		}
		return 0
	})
}

func (s spans) has(a netip.Addr) bool {
	_, ok := s.at(a)
	return ok
}

// add returns s with one more address.
func (s spans) add(a netip.Addr) spans {
	i, ok := s.at(a)
	if ok {
		return s
	}
	before := i > 0 && s[i-1].Last.Next() == a
	behind := i < len(s) && a.Next() == s[i].First
	switch {
	case before && behind:
		s[i-1].Last = s[i].Last
		return slices.Delete(s, i, i+1)
	case before:
		s[i-1].Last = a
	case behind:
		s[i].First = a
	default:
		return slices.Insert(s, i, Range{a, a})
	}
	return s
}

// remove returns s without an address.
func (s spans) remove(a netip.Addr) spans {
	i, ok := s.at(a)
	if !ok {
		return s
	}
	r := s[i]
	switch {
	case r.First == a && r.Last == a:
		return slices.Delete(s, i, i+1)
	case r.First == a:
		s[i].First = a.Next()
	case r.Last == a:
		s[i].Last = a.Prev()
	default:
		s[i].Last = a.Prev()
		return slices.Insert(s, i+1, Range{a.Next(), r.Last})
	}
	return s
}

// union returns the set of all addresses of some ranges.
func union(all []Range) spans {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b Range) int { return a.First.Compare(b.First) })
	var out spans
	for _, r := range sorted {
		if n := len(out); n > 0 && out[n-1].First.Is4() == r.First.Is4() && (!out[n-1].Last.Less(r.First) || out[n-1].Last.Next() == r.First) {
			if out[n-1].Last.Less(r.Last) {
				out[n-1].Last = r.Last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// without returns the parts of a range that are not in the set, in order.
func (s spans) without(r Range) []Range {
	var out []Range
	i, _ := s.at(r.First)
	first := r.First
	for ; i < len(s) && s[i].First.Is4() == r.First.Is4() && !r.Last.Less(s[i].First); i++ {
		if first.Less(s[i].First) {
			out = append(out, Range{first, s[i].First.Prev()})
		}
		if first = s[i].Last.Next(); !first.IsValid() || r.Last.Less(first) {
			return out
		}
	}
	return append(out, Range{first, r.Last})
}

// overlap returns the first part of a range that is in the set.
func (s spans) overlap(r Range) (Range, bool) {
	i, _ := s.at(r.First)
	if i == len(s) || s[i].First.Is4() != r.First.Is4() || r.Last.Less(s[i].First) {
		return Range{}, false
	}
	part := s[i]
	if part.First.Less(r.First) {
		part.First = r.First
	}
	if r.Last.Less(part.Last) {
		part.Last = r.Last
	}
	return part, true
}

// firstFree returns the lowest address of a range that is not in the set; the zero Addr if there is none. avoidBuggy
// leaves out buggy addresses.
func (s spans) firstFree(r Range, avoidBuggy bool) netip.Addr {
	a := r.First
	for i, _ := s.at(a); a.IsValid() && !r.Last.Less(a); a = a.Next() {
		if i < len(s) && s[i].Contains(a) {
			a = s[i].Last
			i++
			continue
		}
		if !avoidBuggy || !buggy(a) {
			return a
		}
	}
	return netip.Addr{}
}
