package nftables

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/service"
)

// A slot is one entry of a frontend's list: an endpoint, with its weight as the Table has
// it. An invalid address is a slot that should be filled and is not.
type slot struct {
	ip           netip.Addr
	port, weight uint16
}

func slotOf(e service.Endpoint) slot { return slot{e.Addr.Addr(), e.Addr.Port(), e.Weight} }

func (s slot) addr() netip.AddrPort { return netip.AddrPortFrom(s.ip, s.port) }

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
		is[i] = slotOf(all[at])
	}
	return is
}
