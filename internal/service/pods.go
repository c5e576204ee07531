package service

import (
	"net/netip"
	"slices"
	"strings"
)

// PodNames are the names of the pods of a Slice's endpoints, in the same order. They are packed, because a cluster has
// 250,000: the pods of a Slice nearly always share all but the last letters. The zero value has no names.
type PodNames struct{ packed string }

// maxPodName is how long the name of an object may be.
const maxPodName = 253

// podNameEnd ends the common prefix and each rest. No name of an object has it.
const podNameEnd = "\n"

// PackPodNames packs names. Empty and impossible names count as not known.
func PackPodNames(names []string) PodNames {
	known := func(s string) bool { return s != "" && len(s) <= maxPodName && !strings.Contains(s, podNameEnd) }
	prefix, any := "", false
	for _, name := range names {
		switch {
		case !known(name):
		case !any:
			prefix, any = name[:len(name)-1], true // the rest of a known name is never empty
		default:
			prefix = commonPrefix(prefix, name[:len(name)-1])
		}
	}
	if !any {
		return PodNames{}
	}
	var b strings.Builder
	b.WriteString(prefix)
	for _, name := range names {
		b.WriteString(podNameEnd)
		if known(name) {
			b.WriteString(name[len(prefix):])
		}
	}
	return PodNames{strings.Clone(b.String())} // without the builder's spare capacity
}

func commonPrefix(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// At returns the name of the pod of endpoint i; empty if not known. The cost grows with the number of names: use it for
// single endpoints.
func (p PodNames) At(i int) string {
	prefix, rest, _ := strings.Cut(p.packed, podNameEnd)
	for ; i > 0; i-- {
		var more bool
		if _, rest, more = strings.Cut(rest, podNameEnd); !more {
			return ""
		}
	}
	own, _, _ := strings.Cut(rest, podNameEnd)
	if own == "" {
		return ""
	}
	return prefix + own
}

// All returns the names of the first n endpoints' pods, in order; empty names are not known. It costs as much as one
// At.
func (p PodNames) All(n int) []string {
	prefix, rest, _ := strings.Cut(p.packed, podNameEnd)
	names := make([]string, n)
	for i := range names {
		var own string
		if own, rest, _ = strings.Cut(rest, podNameEnd); own != "" {
			names[i] = prefix + own
		}
	}
	return names
}

// A PodRef is an EndpointSlice's information about the pod at an address.
type PodRef struct {
	Name        string // empty: not in the slice
	Terminating bool   // the pod was being deleted
}

// Pods returns a PodRef for each of addrs, which are sorted. The PodRef is empty if the Service's slices did not have
// the address, or if e was read back from a datapath. e may be nil. The cost grows with the number of endpoints in the
// slices.
func (e *Entry) Pods(addrs []netip.AddrPort) []PodRef {
	refs := make([]PodRef, len(addrs))
	if e == nil || len(addrs) == 0 {
		return refs
	}
	found := make([]bool, len(addrs))
	for _, s := range e.slices {
		for i := range s.Endpoints {
			p := &s.Endpoints[i]
			at, _ := slices.BinarySearchFunc(addrs, p.Addr, func(a netip.AddrPort, addr netip.Addr) int { return a.Addr().Compare(addr) })
			for ; at < len(addrs) && addrs[at].Addr() == p.Addr; at++ {
				// If two pods had the address, prefer the pod that was not terminating.
				if !found[at] || refs[at].Terminating && !p.Terminating {
					refs[at], found[at] = PodRef{s.Pods.At(i), p.Terminating}, true
				}
			}
		}
	}
	return refs
}
