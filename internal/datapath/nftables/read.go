package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/service"
)

// state is what the kernel holds, all of it.
type state struct {
	frontends map[service.Key]*held
	hairpins  map[netip.Addr]int // how many endpoints need it; 1 where not known
	reserved  map[netip.Addr]int // how many frontends reserve it; 1 where not known
	settings  service.Settings
	ids       map[stickyName]id
	nextID    id
	stickies  map[id]sticky
	learned   map[id]bool  // ids that lead to a learner
	uses      map[how]int  // how many elements lead there
	chains    map[how]bool // whether the chain is there
}

func newState() *state {
	return &state{
		frontends: map[service.Key]*held{},
		hairpins:  map[netip.Addr]int{},
		reserved:  map[netip.Addr]int{},
		uses:      map[how]int{},
		ids:       map[stickyName]id{},
		nextID:    firstID,
		stickies:  map[id]sticky{},
		learned:   map[id]bool{},
		chains:    map[how]bool{},
	}
}

// at returns what is held for k, an empty one if nothing is.
func (s *state) at(k service.Key) *held {
	if h := s.frontends[k]; h != nil {
		return h
	}
	return &held{}
}

// put replaces what is held for k and counts the ways in use.
func (s *state) put(k service.Key, is *held) {
	s.at(k).count(s.uses, -1)
	is.count(s.uses, +1)
	if is.equal(&held{name: is.name}) {
		delete(s.frontends, k)
		return
	}
	s.frontends[k] = is
}

// read returns what the kernel holds.
func (k *kernel) read() (*state, error) {
	r := reader{kernel: k, state: newState()}
	for _, f := range families {
		r.fronts(f.is4, frontends, false, func(h *held, how how) { h.inside = how })
		r.fronts(f.is4, outside, false, func(h *held, how how) { h.outside = how })
		r.fronts(f.is4, nodeports, true, func(h *held, how how) { h.inside = how })
		r.fronts(f.is4, nodeportsOutside, true, func(h *held, how how) { h.outside = how })
		r.slots(f.is4, endpoints, false)
		r.slots(f.is4, nodeportEndpoints, true)
		r.guards(f.is4)
		for _, nodePort := range []bool{false, true} {
			r.sticky(f.is4, nodePort, false, func(h *held, i id, local bool) { h.id, h.local = i, local })
			r.sticky(f.is4, nodePort, true, func(h *held, i id, local bool) { h.outsideID, h.outsideLocal = i, local })
		}
		r.members(f.is4, hairpin, r.state.hairpins)
		r.members(f.is4, reserved, r.state.reserved)
		r.state.settings.Pods = append(r.state.settings.Pods, r.prefixes(pods, f.is4)...)
		r.state.settings.ServiceCIDRs = append(r.state.settings.ServiceCIDRs, r.prefixes(serviceCIDRs, f.is4)...)
		r.state.settings.NodePorts = append(r.state.settings.NodePorts, r.prefixes(nodeportAddresses, f.is4)...)
	}
	r.links()
	r.ways()
	r.each(learnMap, func(e element) error {
		i, err := parseHow(e.key)
		r.state.learned[id(i)] = true
		return err
	})
	return r.state, r.err
}

// reader reads set after set until the first error.
type reader struct {
	*kernel
	state *state
	err   error
}

// each calls f for every element of a set.
func (r *reader) each(name string, f func(e element) error) {
	if r.err != nil {
		return
	}
	if err := r.elements(name, f); err != nil {
		r.err = fmt.Errorf("read %s: %w", name, err)
	}
}

// held returns the frontend of a key, to be filled.
func (r *reader) held(k service.Key) *held {
	h := r.state.frontends[k]
	if h == nil {
		h = &held{}
		r.state.frontends[k] = h
	}
	return h
}

func (r *reader) fronts(is4 bool, s set, nodePort bool, put func(*held, how)) {
	r.each(s.name(is4), func(e element) error {
		k, err := parseFrontKey(e.key, is4, nodePort)
		if err != nil {
			return err
		}
		how, err := parseHow(e.data)
		if err != nil {
			return err
		}
		h := r.held(k)
		h.name = e.comment
		put(h, how)
		return nil
	})
}

func (r *reader) slots(is4 bool, s set, nodePort bool) {
	r.each(s.name(is4), func(e element) error {
		k, slot, err := parseSlotKey(e.key, is4, nodePort)
		if err != nil {
			return err
		}
		addr, err := parseEndpoint(e.data, is4)
		if err != nil {
			return err
		}
		h := r.held(k)
		list := &h.slots
		if slot >= outsideOffset {
			list, slot = &h.outsideSlots, slot-outsideOffset
		}
		if slot >= maxSlots {
			return fmt.Errorf("slot %d of %v is out of range", slot, k)
		}
		for len(*list) <= int(slot) {
			*list = append(*list, netip.AddrPort{})
		}
		(*list)[slot] = addr
		return nil
	})
}

// sticky reads the ids of frontends.
func (r *reader) sticky(is4, nodePort, outside bool, put func(h *held, i id, local bool)) {
	r.each(stickySet(nodePort, outside).name(is4), func(e element) error {
		k, err := parseFrontKey(e.key, is4, nodePort)
		if err != nil {
			return err
		}
		number, err := parseHow(e.data)
		if err != nil {
			return err
		}
		name, seconds, err := parseStickyComment(e.comment, is4)
		if err != nil {
			return err
		}
		h, i := r.held(k), id(number)
		h.seconds = seconds
		put(h, i, name.local)
		r.state.takeID(name, i)
		r.state.stickies[i] = sticky{name, seconds, r.state.stickies[i].uses + 1}
		return nil
	})
}

// guards reads who may come in.
func (r *reader) guards(is4 bool) {
	r.each(guarded.name(is4), func(e element) error {
		k, err := parseFrontKey(e.key, is4, false)
		if err == nil {
			r.held(k).guarded = true
		}
		return err
	})
	size := addrSize(is4)
	r.each(sources.name(is4), func(e element) error {
		if len(e.key) < size || len(e.last) != len(e.key) {
			return fmt.Errorf("range has %d and %d bytes", len(e.key), len(e.last))
		}
		k, err := parseFrontKey(e.key[:len(e.key)-size], is4, false)
		if err != nil {
			return err
		}
		from, _ := netip.AddrFromSlice(e.key[len(e.key)-size:])
		to, _ := netip.AddrFromSlice(e.last[len(e.last)-size:])
		h := r.held(k)
		h.sources = append(h.sources, netipx.IPRangeFrom(from, to))
		slices.SortFunc(h.sources, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
		return nil
	})
}

// members reads a set of addresses; in a hairpin's key the address stands first.
func (r *reader) members(is4 bool, s set, into map[netip.Addr]int) {
	r.each(s.name(is4), func(e element) error {
		addr, ok := netip.AddrFromSlice(e.key[:min(len(e.key), addrSize(is4))])
		if !ok {
			return fmt.Errorf("address has %d bytes", len(e.key))
		}
		into[addr] = 1
		return nil
	})
}

// ways reads which chains are there, and counts those in use.
func (r *reader) ways() {
	for _, h := range r.state.frontends {
		h.count(r.state.uses, +1)
	}
	r.each(waysMap, func(e element) error {
		h, err := parseHow(e.key)
		if ok, _, _ := h.forwards(); ok {
			r.state.chains[h] = true
		}
		return err
	})
}

// links reads the interfaces behind which pods are.
func (r *reader) links() {
	for _, i := range r.intervals(podLinks) {
		if i.end != nil {
			r.state.settings.PodInterfaces = append(r.state.settings.PodInterfaces, parseLinkRange(i.from, i.end))
		}
	}
}

// prefixes reads an interval set of addresses.
func (r *reader) prefixes(s set, is4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, i := range r.intervals(s.name(is4)) {
		from, ok := netip.AddrFromSlice(i.from)
		to := lastAddr(is4)
		if i.end != nil {
			end, _ := netip.AddrFromSlice(i.end)
			to = end.Prev()
		}
		if !ok || !to.IsValid() {
			r.err = errors.Join(r.err, fmt.Errorf("read %s: address has %d bytes", s, len(i.from)))
			return nil
		}
		out = append(out, toPrefixes(from, to)...)
	}
	return out
}

// An interval is from its first key to behind its last; end is nil if it has no end.
type interval struct{ from, end []byte }

// intervals reads an interval set, sorted. The kernel keeps each edge as an element.
func (r *reader) intervals(name string) []interval {
	var edges []element
	r.each(name, func(e element) error {
		edges = append(edges, e)
		return nil
	})
	slices.SortFunc(edges, func(a, b element) int {
		if c := bytes.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end { // of the one before
			return -1
		}
		return 1
	})
	var out []interval
	for i, e := range edges {
		switch {
		case e.end:
		case i+1 < len(edges) && edges[i+1].end:
			out = append(out, interval{e.key, edges[i+1].key})
		default:
			out = append(out, interval{from: e.key})
		}
	}
	return out
}
