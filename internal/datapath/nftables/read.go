package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// read returns what the kernel holds. Sets that are not there, in the table of an older
// program, hold nothing.
func read(ctx context.Context, t *nft.Table) (*state, error) {
	r := reader{ctx: ctx, Table: t, state: newState()}
	r.ways()
	for _, f := range families {
		r.fronts(f.is4, services, false, func(h *held, how how) { h.entry = how })
		r.fronts(f.is4, nodeport, true, func(h *held, how how) { h.entry = how })
		r.fronts(f.is4, inside, false, func(h *held, how how) { h.most().inside = how })
		r.fronts(f.is4, nodeportInside, true, func(h *held, how how) { h.most().inside = how })
		r.fronts(f.is4, outside, false, func(h *held, how how) { h.most().outside = how })
		r.fronts(f.is4, nodeportOutside, true, func(h *held, how how) { h.most().outside = how })
		r.slots(f.is4, endpoints, false)
		r.slots(f.is4, nodeportEndpoints, true)
		r.guards(f.is4)
		for _, nodePort := range []bool{false, true} {
			r.sticky(f.is4, nodePort, false)
			r.sticky(f.is4, nodePort, true)
		}
		r.members(f.is4, hairpin, func(a netip.Addr) { r.state.hairpins[a] = 1 })
		r.members(f.is4, reserved, func(a netip.Addr) { r.state.reserved[a] = 1 })
		facts := &r.state.facts
		r.members(f.is4, nodeportHosts, func(a netip.Addr) { facts.hosts = append(facts.hosts, a) })
		facts.pods = append(facts.pods, r.prefixes(pods, f.is4)...)
		facts.services = append(facts.services, r.prefixes(serviceCIDRs, f.is4)...)
		facts.nodePorts = append(facts.nodePorts, r.prefixes(nodeportAddresses, f.is4)...)
	}
	r.tallies()
	r.links()
	r.learners()
	for k, h := range r.state.frontends {
		h.count(r.state.uses, +1)
		r.state.listAll(k, h, true)
	}
	return r.state, r.err
}

// reader reads set after set until the first error.
type reader struct {
	ctx context.Context // of this reading
	*nft.Table
	state *state
	err   error
}

// each calls f for every element of a set.
func (r *reader) each(name string, f func(e nft.Element) error) {
	if r.err == nil {
		r.err = r.missing(r.Elements(r.ctx, name, f))
	}
}

// missing forgives that a set is not there.
func (r *reader) missing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
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

// most returns what few frontends have, to be filled.
func (h *held) most() *more {
	if h.more == nil {
		h.more = &more{}
	}
	return h.more
}

func (r *reader) fronts(is4 bool, s set, nodePort bool, put func(*held, how)) {
	r.each(s.name(is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		how, err := parseHow(e.Data)
		if err != nil {
			return err
		}
		h := r.held(k)
		put(h, how)
		if s == services || s == nodeport {
			return h.parseComment(e.Comment)
		}
		return nil
	})
}

func (r *reader) slots(is4 bool, s set, nodePort bool) {
	r.each(s.name(is4), func(e nft.Element) error {
		k, at, err := parseSlotKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		addr, err := parseEndpoint(e.Data, is4)
		if err != nil {
			return err
		}
		weight, err := parseWeight(e.Comment)
		if err != nil {
			return err
		}
		h := r.held(k)
		list := &h.slots
		if at >= outsideOffset {
			list, at = &h.most().outsideSlots, at-outsideOffset
		}
		if at >= maxSlots {
			return fmt.Errorf("slot %d of %v is out of range", at, k)
		}
		if *list == nil {
			n, _ := h.way().slots()
			*list = make([]slot, 0, min(max(n, at+1), maxSlots))
		}
		for len(*list) <= int(at) {
			*list = append(*list, slot{})
		}
		(*list)[at] = slot{addr.Addr(), addr.Port(), weight}
		return nil
	})
}

// sticky reads the ids of frontends.
func (r *reader) sticky(is4, nodePort, outside bool) {
	r.each(stickySet(nodePort, outside).name(is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		number, err := parseHow(e.Data)
		if err != nil {
			return err
		}
		name, seconds, err := parseStickyComment(e.Comment, is4)
		if err != nil {
			return err
		}
		i, m := id(number)&idMask, r.held(k).most()
		m.seconds, m.class = seconds, class(id(number)&^idMask>>classShift)
		if outside {
			m.outsideID, m.outsideLocal = i, name.local
		} else {
			m.id, m.local = i, name.local
		}
		if i&^idNumber == idRange && r.state.stickies[i] == nil { // else of an older program
			r.state.takeID(name, i)
		}
		return nil
	})
}

// guards reads who may come in.
func (r *reader) guards(is4 bool) {
	r.each(guarded.name(is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, false)
		if err == nil {
			r.held(k).most().guarded = true
		}
		return err
	})
	size := addrSize(is4)
	r.each(sources.name(is4), func(e nft.Element) error {
		if len(e.Key) < size || len(e.Last) != len(e.Key) {
			return fmt.Errorf("range has %d and %d bytes", len(e.Key), len(e.Last))
		}
		k, err := parseFrontKey(e.Key[:len(e.Key)-size], is4, false)
		if err != nil {
			return err
		}
		from, _ := netip.AddrFromSlice(e.Key[len(e.Key)-size:])
		to, _ := netip.AddrFromSlice(e.Last[len(e.Last)-size:])
		m := r.held(k).most()
		m.sources = append(m.sources, netipx.IPRangeFrom(from, to))
		slices.SortFunc(m.sources, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
		return nil
	})
}

// members reads a set of addresses; in a hairpin's key the address stands first.
func (r *reader) members(is4 bool, s set, add func(netip.Addr)) {
	r.each(s.name(is4), func(e nft.Element) error {
		addr, ok := netip.AddrFromSlice(e.Key[:min(len(e.Key), addrSize(is4))])
		if !ok {
			return fmt.Errorf("address has %d bytes", len(e.Key))
		}
		add(addr)
		return nil
	})
}

// ways reads which chains are there, and what those of somebody's own do.
func (r *reader) ways() {
	r.each(waysMap, func(e nft.Element) error {
		h, err := parseHow(e.Key)
		if err != nil || !h.picks() {
			return err
		}
		what := h
		if h.own() {
			if what, err = parseHowText(e.Comment); err != nil {
				return err
			}
			r.state.lastOwn = max(r.state.lastOwn, h&^howOwnMask)
		}
		r.state.chains[h] = way{what, true}
		return nil
	})
}

// learners reads how long clients are remembered.
func (r *reader) learners() {
	r.each(learnerMap, func(e nft.Element) error {
		number, err := parseHow(e.Key)
		if err != nil {
			return err
		}
		seconds, err := parseSeconds(e.Comment)
		c := class(id(number) &^ idMask >> classShift)
		r.state.classes[c], r.state.learners[c] = seconds, seconds
		return err
	})
}

// links reads the interfaces behind which pods are.
func (r *reader) links() {
	if r.err == nil {
		r.state.facts.links, r.err = r.Links(r.ctx, podLinks)
		r.err = r.missing(r.err)
	}
}

// prefixes reads an interval set of addresses.
func (r *reader) prefixes(s set, is4 bool) (all []netip.Prefix) {
	if r.err == nil {
		all, r.err = r.Prefixes(r.ctx, s.name(is4))
		r.err = r.missing(r.err)
	}
	return all
}
