package nftables

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A slot is one entry of a frontend's list: an endpoint, with its weight as the Table has
// it. The zero slot should be filled and is not. There are as many as endpoints on all frontends, and
// a list is made anew with each change of it: so it is small, and without a pointer for the garbage collector.
type slot struct {
	ip           [16]byte
	bits         uint8 // of the address: 32, 128; 0: none
	port, weight uint16
}

func newSlot(a netip.AddrPort, weight uint16) slot {
	return slot{a.Addr().As16(), uint8(a.Addr().BitLen()), a.Port(), weight}
}

func (s slot) filled() bool { return s.bits != 0 }

// addr returns where the slot leads; an invalid address if it is not filled.
func (s slot) addr() netip.AddrPort {
	switch s.bits {
	case 32:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.ip[12:])), s.port)
	case 128:
		return netip.AddrPortFrom(netip.AddrFrom16(s.ip), s.port)
	}
	return netip.AddrPort{}
}

// fill returns the slots for endpoints, given the present slots. All lists but Maglev's
// keep an endpoint in its slot, so that a change writes as many slots as endpoints changed.
func fill(was []slot, all []service.Endpoint, balance service.Algorithm) []slot {
	var list []int32
	if balance == service.Maglev {
		list = lb.Maglev(all)
	} else {
		list = lb.SlotsAfter(len(was), func(i int) netip.AddrPort { return was[i].addr() }, all)
	}
	is := make([]slot, len(list))
	for i, at := range list {
		is[i] = newSlot(all[at].Addr, all[at].Weight)
	}
	return is
}
