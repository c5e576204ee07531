package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A Pool is a set of addresses for Services: an IPAddressPool of metallb.io. It is immutable.
type Pool struct {
	Name   string
	Labels map[string]string // advertisements select pools by them
	Ranges []Range           // in the order of the object
	// AutoAssign gives the pool's addresses also to Services that do not ask for the pool.
	AutoAssign bool
	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 or .255, because some old routers drop packets to them.
	AvoidBuggyIPs bool
	// Allocation restricts the pool to some Services; nil means all.
	Allocation *Allocation
	// Created is in seconds since 1970; zero is the oldest. If two pools overlap, the older one has the addresses.
	Created int64
	// Problems are the invalid parts of the object, which were left out.
	Problems []api.Problem
}

// An Allocation restricts a pool to some Services, and gives it a priority for them.
type Allocation struct {
	// Priority orders pools: the lowest comes first, also below 0, except that 0 comes last.
	Priority int
	// One of Namespaces and NamespaceSelectors must match; if both are empty, all namespaces do.
	Namespaces         []string
	NamespaceSelectors []api.Selector
	// One of ServiceSelectors must match; empty means all Services.
	ServiceSelectors []api.Selector
}

// A Range is the addresses of one family from First to Last, both included.
type Range struct{ First, Last netip.Addr }

// ParseRange reads "192.0.2.0/24" or "192.0.2.10-192.0.2.20".
func ParseRange(text string) (Range, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		return parseEnds(text, strings.TrimSpace(first), strings.TrimSpace(last))
	}
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return Range{}, fmt.Errorf("%q is neither a CIDR nor FIRST-LAST", api.Cut(text, 100))
	}
	if a := p.Addr(); a.Is4In6() {
		if p.Bits() < 96 {
			return Range{}, fmt.Errorf("%q is wider than the IPv4 addresses that it maps", text)
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return RangeOf(p), nil
}

// RangeOf returns all addresses of a prefix.
func RangeOf(p netip.Prefix) Range { return Range{p.Masked().Addr(), last(p.Masked())} }

func parseEnds(text, first, last string) (Range, error) {
	r := Range{}
	for i, end := range []string{first, last} {
		a, err := netip.ParseAddr(end)
		if err != nil || a.Zone() != "" {
			return Range{}, fmt.Errorf("%q: %q is not an IP address", api.Cut(text, 100), api.Cut(end, 50))
		}
		if i == 0 {
			r.First = a.Unmap()
		} else {
			r.Last = a.Unmap()
		}
	}
	switch {
	case r.First.Is4() != r.Last.Is4():
		return Range{}, fmt.Errorf("%q begins and ends in different address families", text)
	case r.Last.Less(r.First):
		return Range{}, fmt.Errorf("%q ends before it begins", text)
	}
	return r, nil
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		if bits := p.Bits() - 8*i; bits <= 0 {
			b[i] = 0xff
		} else if bits < 8 {
			b[i] |= 0xff >> bits
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Contains reports whether a is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// String returns "192.0.2.10-192.0.2.20".
func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Contains reports whether an address is in the pool, and not left out.
func (p *Pool) Contains(a netip.Addr) bool {
	return !(p.AvoidBuggyIPs && buggy(a)) && slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}

// buggy reports whether AvoidBuggyIPs leaves out an address.
func buggy(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	b := a.As4()
	return b[3] == 0 || b[3] == 255
}
