package nftables

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A slot is one entry of a frontend's list: an endpoint and its weight. The zero value is an empty slot.
//
// There are as many slots as endpoints of all frontends, and each change of a list allocates the list again. So a slot
// is small and has no pointers, which the garbage collector would follow.
type slot struct {
	ip           [16]byte
	bits         uint8 // of the address: 32 or 128; 0: the slot is empty
	port, weight uint16
}

func newSlot(a netip.AddrPort, weight uint16) slot {
	return slot{a.Addr().As16(), uint8(a.Addr().BitLen()), a.Port(), weight}
}

func (s slot) filled() bool { return s.bits != 0 }

// addr returns the endpoint in the slot, or an invalid address if the slot is empty.
func (s slot) addr() netip.AddrPort {
	switch s.bits {
	case 32:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.ip[12:])), s.port)
	case 128:
		return netip.AddrPortFrom(netip.AddrFrom16(s.ip), s.port)
	}
	return netip.AddrPort{}
}

// fill returns the slots for endpoints, given the present slots. An endpoint keeps its slot, so that a change writes
// only as many slots as endpoints changed. Only Maglev's lists are computed from the start.
func fill(was []slot, all []service.Endpoint, balance service.Algorithm) []slot {
	var list []int32 // the index in all of each slot's endpoint
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

// Slots returns the endpoints of a frontend for internal clients, slot by slot, as of the last Sync. The kernel chooses
// one of the slots for each connection.
func (d *Datapath) Slots(k service.Key) []netip.AddrPort {
	if d.state == nil || d.state.frontends[k] == nil {
		return nil
	}
	all := make([]netip.AddrPort, len(d.state.frontends[k].slots))
	for i, s := range d.state.frontends[k].slots {
		all[i] = s.addr()
	}
	return all
}
