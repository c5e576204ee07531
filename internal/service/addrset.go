package service

import (
	"net/netip"
	"slices"
)

// An AddrSet is a set of addresses, sorted. The zero value is empty.
type AddrSet []netip.Addr

// NewAddrSet returns the set of all valid addresses, without zones.
func NewAddrSet(all ...netip.Addr) AddrSet {
	var s AddrSet
	for _, a := range all {
		if a.IsValid() {
			s = append(s, a.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(s, netip.Addr.Compare)
	return slices.Compact(s)
}

// Has reports whether an address is in the set.
func (s AddrSet) Has(a netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(s, a, netip.Addr.Compare)
	return ok
}
