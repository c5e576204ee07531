package nftables

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/service"
)

// held is what the kernel holds for one frontend.
type held struct {
	name            string // the Service's port, the comment of the element
	inside, outside how    // outside is 0 where both are treated alike
	// slots and outsideSlots are the two lists of endpoints. An invalid address is a
	// slot that should be there and is not.
	slots, outsideSlots []netip.AddrPort
	// id and outsideID are the numbers of the two lists, if the Service's port has
	// affinity, and seconds is how long that lasts; 0: it has none. local and
	// outsideLocal are the lists' Route.Local then.
	id, outsideID       id
	local, outsideLocal bool
	seconds             uint32
	// guarded says that only sources may come in.
	guarded bool
	sources []netipx.IPRange
}

// equal reports whether the kernel holds the same for h and o.
func (h *held) equal(o *held) bool {
	return h.name == o.name && h.inside == o.inside && h.outside == o.outside &&
		h.id == o.id && h.outsideID == o.outsideID && h.seconds == o.seconds && h.guarded == o.guarded && slices.Equal(h.sources, o.sources) &&
		slices.Equal(h.slots, o.slots) && slices.Equal(h.outsideSlots, o.outsideSlots)
}

// count adds d to the uses of the ways that h leads to.
func (h *held) count(uses map[how]int, d int) {
	for _, way := range [...]how{h.inside, h.outside} {
		if ok, _, _ := way.forwards(); ok {
			uses[way] += d
		}
	}
}

// hold returns what the kernel shall hold for f, given what it holds now: an endpoint
// that stays keeps its slot, so that a change writes as many slots as endpoints changed.
func (s *state) hold(was *held, f *service.Frontend) *held {
	if f == nil {
		return &held{}
	}
	sticky := f.Affinity > 0
	is := &held{
		name:   f.Service.String(),
		inside: howTo(f.Inside, f.NodePort(), false, sticky),
		slots:  assign(was.slots, f.Inside.Endpoints),
	}
	if sticky {
		is.local = f.Inside.Local
		is.id = s.idOf(stickyName{is.name, f.Addr.Addr().Is4(), is.local})
		is.seconds = uint32(max(f.Affinity/time.Second, 1))
	}
	if len(f.Sources) > 0 {
		is.guarded, is.sources = true, ranges(f.Sources, f.Addr.Addr().Is4())
	}
	if !f.Inside.Equal(f.Outside) {
		is.outside = howTo(f.Outside, f.NodePort(), true, sticky)
		is.outsideSlots = assign(was.outsideSlots, f.Outside.Endpoints)
		if sticky {
			is.outsideLocal = f.Outside.Local
			is.outsideID = s.idOf(stickyName{is.name, f.Addr.Addr().Is4(), is.outsideLocal})
		}
	}
	return is
}

// assign gives each endpoint a slot: the one it has if that is still in range, else
// the first free one.
func assign(was []netip.AddrPort, eps []service.Endpoint) []netip.AddrPort {
	n := min(len(eps), maxSlots)
	is := make([]netip.AddrPort, n)
	if len(was) == 0 {
		for i := range is {
			is[i] = eps[i].Addr
		}
		return is
	}
	left := make(map[netip.AddrPort]bool, n)
	for _, e := range eps[:n] {
		left[e.Addr] = true
	}
	for i := range min(n, len(was)) {
		if left[was[i]] {
			is[i] = was[i]
			delete(left, was[i])
		}
	}
	free := 0
	for _, e := range eps[:n] {
		if !left[e.Addr] {
			continue
		}
		for is[free].IsValid() {
			free++
		}
		is[free] = e.Addr
	}
	return is
}

// A plan is the writes of one Sync in their order. Between two of its transactions
// every frontend is whole: an endpoint is there before the first packet can pick it
// and leaves after the last one could.
type plan struct {
	endpoints []write // added or replaced
	fronts    []write
	gone      []write // endpoints removed
	rest      []write // settings and hairpins
}

func (p *plan) writes() []write {
	return slices.Concat(p.rest, p.endpoints, p.fronts, p.gone)
}

// frontend plans the change of one frontend from was to is.
func (p *plan) frontend(k service.Key, was, is *held) {
	key, is4, nodePort := frontKey(k), k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
	front, out, eps := frontends, outside, endpoints
	if nodePort {
		front, out, eps = nodeports, nodeportsOutside, nodeportEndpoints
	}
	p.slots(eps.name(is4), key, 0, was.slots, is.slots)
	p.slots(eps.name(is4), key, outsideOffset, was.outsideSlots, is.outsideSlots)
	p.guard(is4, key, was, is)
	p.sticky(stickySet(nodePort, false).name(is4), key, was.id, is.id, was, is, is.local)
	p.sticky(stickySet(nodePort, true).name(is4), key, was.outsideID, is.outsideID, was, is, is.outsideLocal)
	// The element for outsiders comes before and leaves after the one for all: without
	// it they would be served by the other.
	if is.outside != 0 {
		p.front(out.name(is4), key, was, is, was.outside, is.outside)
	}
	p.front(front.name(is4), key, was, is, was.inside, is.inside)
	if is.outside == 0 {
		p.front(out.name(is4), key, was, is, was.outside, is.outside)
	}
}

// sticky plans the id of a frontend. It is there before the way that asks for it.
func (p *plan) sticky(set string, key []byte, from, to id, was, is *held, local bool) {
	if from == to && (to == 0 || was.seconds == is.seconds && was.name == is.name) {
		return
	}
	w := write{set: set, key: key, del: from != 0, add: to != 0}
	if !w.add {
		p.gone = append(p.gone, w)
		return
	}
	w.data, w.comment = idData(to), stickyName{is.name, false, local}.comment(is.seconds)
	p.endpoints = append(p.endpoints, w)
}

// guard plans who may come in. The guard stands before the frontend opens and leaves
// before the sources do, so that nobody slips in; ranges are replaced at once, because
// the kernel does not take one that overlaps another.
func (p *plan) guard(is4 bool, key []byte, was, is *held) {
	guard := write{set: guarded.name(is4), key: key}
	all := func(list []netipx.IPRange, del, add bool) []write {
		var ws []write
		for _, r := range list {
			ws = append(ws, write{
				set: sources.name(is4), del: del, add: add,
				key:  append(slices.Clone(key), r.From().AsSlice()...),
				last: append(slices.Clone(key), r.To().AsSlice()...),
			})
		}
		return ws
	}
	if !slices.Equal(was.sources, is.sources) {
		if len(is.sources) > 0 {
			p.endpoints = append(p.endpoints, all(was.sources, true, false)...)
			p.endpoints = append(p.endpoints, all(is.sources, false, true)...)
		} else {
			p.gone = append(p.gone, all(was.sources, true, false)...)
		}
	}
	switch {
	case is.guarded && !was.guarded:
		guard.add = true
		p.endpoints = append(p.endpoints, guard)
	case was.guarded && !is.guarded:
		guard.del = true
		p.fronts = append(p.fronts, guard)
	}
}

func (p *plan) front(set string, key []byte, was, is *held, from, to how) {
	if from == to && (to == 0 || was.name == is.name) {
		return
	}
	w := write{set: set, key: key, del: from != 0, add: to != 0}
	if w.add {
		w.data, w.comment = howData(to), is.name
	}
	p.fronts = append(p.fronts, w)
}

func (p *plan) slots(set string, front []byte, offset uint32, was, is []netip.AddrPort) {
	at := func(list []netip.AddrPort, i int) netip.AddrPort {
		if i < len(list) {
			return list[i]
		}
		return netip.AddrPort{}
	}
	for i := range max(len(was), len(is)) {
		from, to := at(was, i), at(is, i)
		if from == to {
			continue
		}
		w := write{set: set, key: slotKey(front, offset+uint32(i)), del: from.IsValid(), add: to.IsValid()}
		if !w.add {
			p.gone = append(p.gone, w)
			continue
		}
		w.data = endpointData(to)
		p.endpoints = append(p.endpoints, w)
	}
}

// members plans a set of addresses that several frontends may need. is has the new
// counts of those that may have changed, was those of all; key makes an element.
func (p *plan) members(s set, was, is map[netip.Addr]int, key func(netip.Addr) []byte) {
	for a, n := range is {
		if (was[a] > 0) != (n > 0) {
			p.rest = append(p.rest, write{set: s.name(a.Is4()), key: key(a), add: n > 0, del: n == 0})
		}
	}
}

// hairpinKey is an address as source and destination.
func hairpinKey(a netip.Addr) []byte { return append(a.AsSlice(), a.AsSlice()...) }

// prefixes plans the change of an interval set. It is small and rarely changes, so it
// is written anew, in one transaction.
func (p *plan) prefixes(s set, was, is []netip.Prefix) {
	for _, f := range families {
		from, to := ranges(was, f.is4), ranges(is, f.is4)
		if slices.Equal(from, to) {
			continue
		}
		for _, r := range from {
			p.rest = append(p.rest, write{set: s.name(f.is4), key: r.From().AsSlice(), end: after(r.To()), del: true})
		}
		for _, r := range to {
			p.rest = append(p.rest, write{set: s.name(f.is4), key: r.From().AsSlice(), end: after(r.To()), add: true})
		}
	}
}

// links plans the set of interfaces behind which pods are.
func (p *plan) links(was, is []string) {
	if slices.Equal(was, is) {
		return
	}
	for _, step := range []struct {
		names []string
		add   bool
	}{{was, false}, {is, true}} {
		for _, name := range step.names {
			from, end := linkRange(name)
			p.rest = append(p.rest, write{set: podLinks, key: from, end: end, add: step.add, del: !step.add})
		}
	}
}

// after returns the address behind a as an interval's end, nil behind the last one.
func after(a netip.Addr) []byte {
	if next := a.Next(); next.IsValid() {
		return next.AsSlice()
	}
	return nil
}
