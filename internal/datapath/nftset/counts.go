package nftset

import (
	"iter"
	"net/netip"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Counts has the number of frontends that need each address of a set. An address stays in the set while a frontend
// needs it. An address that was read from the kernel counts 1, because the kernel does not know the number.
type Counts map[netip.Addr]int

// ClusterIPsOf calls f for the ClusterIP of a frontend.
func ClusterIPsOf(fr *service.Frontend, f func(netip.Addr)) {
	if fr.ClusterIP {
		f(fr.Addr.Addr())
	}
}

// ExternalAddressesOf calls f for the address of a frontend that is a load balancer's or an external IP, and no node's.
func ExternalAddressesOf(fr *service.Frontend, f func(netip.Addr)) {
	if fr.OwnsAddress() {
		f(fr.Addr.Addr())
	}
}

// LocalEndpointsOf calls f for the address of each endpoint of a frontend that is on this node. Two endpoints with the
// same address are two calls.
func LocalEndpointsOf(fr *service.Frontend, f func(netip.Addr)) {
	for i, r := range [...]*service.Route{fr.Internal, fr.External} {
		if r == nil || i == 1 && r == fr.Internal {
			continue
		}
		for _, e := range r.Endpoints {
			if e.Local {
				f(e.Addr.Addr())
			}
		}
	}
}

// Change returns the changed counts, by address. each calls its argument for the addresses that a
// frontend needs. If full is set, changes has all frontends, and other addresses of c get 0.
func (c Counts) Change(changes []service.Change, each func(*service.Frontend, func(netip.Addr)), full bool) Counts {
	changed := Counts{}
	count := func(f *service.Frontend, delta int) {
		if f == nil {
			return
		}
		each(f, func(a netip.Addr) {
			if _, ok := changed[a]; !ok && !full {
				changed[a] = c[a]
			}
			changed[a] += delta
		})
	}
	for _, one := range changes {
		if !full {
			count(one.Old, -1)
		}
		count(one.New, +1)
	}
	if full {
		for a := range c {
			changed[a] += 0
		}
	}
	return changed
}

// Writes returns the writes that change the set from c to changed: additions and deletions.
func (c Counts) Writes(s Set, changed Counts, key func(netip.Addr) []byte) (add, del []nft.Write) {
	for w := range c.All(s, changed, key) {
		if w.Add {
			add = append(add, w)
		} else {
			del = append(del, w)
		}
	}
	return add, del
}

// All yields the same writes as Writes, one at a time. At a start they are too many to hold in memory.
func (c Counts) All(s Set, changed Counts, key func(netip.Addr) []byte) iter.Seq[nft.Write] {
	return func(yield func(nft.Write) bool) {
		for a, n := range changed {
			if (c[a] > 0) != (n > 0) && !yield(nft.Write{Set: s.Name(a.Is4()), Key: key(a), Add: n > 0, Del: n == 0}) {
				return
			}
		}
	}
}

// Note merges the changed counts into c.
func (c Counts) Note(changed Counts) {
	for a, n := range changed {
		if n == 0 {
			delete(c, a)
			continue
		}
		c[a] = n
	}
}

// SameAddrs reports whether c and o have the same addresses. Counts may differ.
func (c Counts) SameAddrs(o Counts) bool {
	for a := range c {
		if _, ok := o[a]; !ok {
			return false
		}
	}
	return len(c) == len(o)
}
