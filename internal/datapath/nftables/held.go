package nftables

import (
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// held is what the kernel holds for one frontend. There is one for each, so it is
// small: what few of them have is in more.
type held struct {
	name    string // the Service's port
	slots   []slot
	more    *more // nil: none of it
	entry   how   // of services4: how, or howCloser
	balance service.Algorithm
	tallies tally
}

// more is what only some frontends have.
type more struct {
	inside, outside how // in the maps of those to look closer at
	outsideSlots    []slot
	// id and outsideID are the numbers of the two lists, if the Service's port has
	// affinity, seconds is how long that lasts (0: it has none), and class stands for
	// that. local and outsideLocal are the lists' Route.Local then.
	id, outsideID       id
	local, outsideLocal bool
	class               class
	seconds             uint32
	// guarded says that only sources may come in.
	guarded bool
	sources []netipx.IPRange
}

// rare returns what few frontends have.
func (h *held) rare() more {
	if h.more == nil {
		return more{}
	}
	return *h.more
}

// way returns how clients inside are treated.
func (h *held) way() how {
	if h.entry == howCloser {
		return h.rare().inside
	}
	return h.entry
}

// empty reports whether the kernel holds nothing for h.
func (h *held) empty() bool { return h.equal(&held{name: h.name, balance: h.balance}) }

// equal reports whether the kernel holds the same for h and o.
func (h *held) equal(o *held) bool {
	return h.name == o.name && h.entry == o.entry && h.balance == o.balance && h.tallies == o.tallies &&
		slices.Equal(h.slots, o.slots) && (h.more == o.more || h.rare().equal(o.rare()))
}

func (m more) equal(o more) bool {
	return m.inside == o.inside && m.outside == o.outside && slices.Equal(m.outsideSlots, o.outsideSlots) &&
		m.id == o.id && m.outsideID == o.outsideID && m.class == o.class && m.seconds == o.seconds &&
		m.guarded == o.guarded && slices.Equal(m.sources, o.sources)
}

// ways returns the chains that h leads to.
func (h *held) ways() [3]how {
	all := [3]how{h.entry}
	if h.more != nil {
		all[1], all[2] = h.more.inside, h.more.outside
	}
	return all
}

// count adds d to the uses of the ways that h leads to.
func (h *held) count(uses map[how]int, d int) {
	for _, way := range h.ways() {
		if way.picks() {
			uses[way] += d
		}
	}
}

// hold returns what the kernel shall hold for f, given what it holds now.
func (s *state) hold(was *held, f *service.Frontend, traffic bool) *held {
	if f == nil {
		return &held{}
	}
	sticky, before := f.Affinity > 0, was.rare()
	is := &held{name: f.Service.String(), balance: f.Balance, slots: s.fill(was.slots, f.Internal, f.Balance)}
	is4 := f.Addr.Addr().Is4()
	way := s.way(was.way(), howTo(f.Internal, f.Balance, len(is.slots), f.NodePort(), false, sticky), is4)
	var now more
	if sticky {
		now.local = f.Internal.Local
		now.id = s.idOf(stickyName{is.name, is4, now.local})
		now.seconds = uint32(max(f.Affinity/time.Second, 1))
		now.class = s.classOf(now.seconds)
	}
	if len(f.Sources) > 0 {
		now.guarded, now.sources = true, nft.Ranges(f.Sources, is4)
	}
	if !f.Internal.Equal(f.External) {
		now.outsideSlots = s.fill(before.outsideSlots, f.External, f.Balance)
		now.outside = s.way(before.outside, howTo(f.External, f.Balance, len(now.outsideSlots), f.NodePort(), true, sticky), is4)
		if sticky {
			now.outsideLocal = f.External.Local
			now.outsideID = s.idOf(stickyName{is.name, is4, now.outsideLocal})
		}
	}
	is.entry = way
	if now.guarded || now.outside != 0 {
		is.entry, now.inside = howCloser, way
	}
	if !now.equal(more{}) {
		is.more = &now
	}
	is.tallies = is.counted(was.tallies, traffic)
	return is
}

// fill returns the slots for a route. Frontends of one Service have routes in common,
// so that their slots are as well, where nothing says that they must differ.
func (s *state) fill(was []slot, r *service.Route, balance service.Algorithm) []slot {
	if len(was) > 0 && balance != service.Maglev {
		return fill(was, r.Endpoints, balance)
	}
	if s.last.route != r || s.last.balance != balance {
		s.last.route, s.last.balance, s.last.slots = r, balance, fill(nil, r.Endpoints, balance)
	}
	return s.last.slots
}

// way returns the number that leads to the chain which does what: what itself, or a
// number of its own for those that take turns. was is the number until now.
func (s *state) way(was, what how, is4 bool) how {
	if !what.picks() || what&howRing != howTurns {
		return what
	}
	if what |= howOnly6; is4 {
		what ^= howOnly6 | howOnly4
	}
	if was.own() && s.chains[was].what == what {
		return was
	}
	// There are more numbers than frontends: one is always free.
	number, _ := lb.NextFree(uint32(s.lastOwn), uint32(^howOwnMask), func(n uint32) bool { _, taken := s.chains[howOwn|how(n)]; return taken })
	s.lastOwn = how(number)
	s.chains[howOwn|s.lastOwn] = way{what: what}
	return howOwn | s.lastOwn
}
