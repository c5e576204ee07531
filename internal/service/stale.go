package service

import (
	"net/netip"
	"slices"
)

// A Flow is what the kernel remembers of a client that used a Frontend: packets to
// Frontend go to Endpoint. An invalid Endpoint is a flow that was never translated.
type Flow struct {
	Proto    Proto
	Frontend netip.AddrPort // with the unspecified address: this port on any of the node's
	Endpoint netip.AddrPort
}

// Stale returns the flows that the change from one table to another made wrong, sorted.
//
// Only UDP needs it: a TCP connection to an endpoint that is gone ends by itself, and
// one to an endpoint that is merely not ready any more shall go on; a UDP client that
// keeps its port has one flow for ever. A flow is wrong when its endpoint does not even
// serve any more, or when the frontend is gone; and a frontend that gets its first
// endpoints makes flows wrong that passed untranslated before.
func Stale(from, to *Table) []Flow {
	var flows []Flow
	for _, c := range changed(from, to) {
		if c.Key().Proto != UDP {
			continue
		}
		add := func(endpoint netip.AddrPort) {
			flows = append(flows, Flow{UDP, c.Key().Addr, endpoint})
		}
		had, has := c.Old.couldAnswer(), c.New.couldAnswer()
		for a := range had {
			if !has[a] {
				add(a)
			}
		}
		if len(had) == 0 && len(has) > 0 {
			add(netip.AddrPort{})
		}
	}
	slices.SortFunc(flows, func(a, b Flow) int {
		if c := a.Frontend.Compare(b.Frontend); c != 0 {
			return c
		}
		return a.Endpoint.Compare(b.Endpoint)
	})
	return flows
}

// couldAnswer returns the endpoints whose flows may live. f may be nil.
func (f *Frontend) couldAnswer() map[netip.AddrPort]bool {
	if f == nil {
		return nil
	}
	all := map[netip.AddrPort]bool{}
	for _, a := range f.Serving {
		all[a] = true
	}
	// What a datapath reads back has only these.
	for _, r := range [...]*Route{f.Inside, f.Outside} {
		for _, e := range r.Endpoints {
			all[e.Addr] = true
		}
	}
	return all
}
