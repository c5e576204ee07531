package nftables

import (
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A frontendState is what the kernel holds for one frontend. Each frontend has one, so it
// is small: rarely used fields are in extra.
type frontendState struct {
	name    string // the Service's port
	slots   []slot
	extra   *extraState // nil: all fields are zero
	entry   verdictID   // in the map frontends; verdictPolicyCheck where extra says more
	balance service.Algorithm
	// loadBalancer is the frontend's own: it is in the comment only.
	loadBalancer bool
	tallies      tally
}

// An extraState has the fields that only some frontends use.
type extraState struct {
	internal, external verdictID // in the maps frontends-internal and -external; 0: none
	externalSlots      []slot
	// With affinity, the two lists have IDs, seconds is how long a client stays (0: no
	// affinity), duration is the index of seconds, and local and localExternal are
	// Route.Local of the lists.
	affinityID, affinityIDExternal affinityID
	local, localExternal           bool
	duration                       durationIndex
	seconds                        uint32
	sources                        nftset.Sources
}

// extraOrZero returns extra, or the zero value.
func (h *frontendState) extraOrZero() extraState {
	if h.extra == nil {
		return extraState{}
	}
	return *h.extra
}

// internalVerdict returns the verdict for internal clients.
func (h *frontendState) internalVerdict() verdictID {
	if h.entry == verdictPolicyCheck {
		return h.extraOrZero().internal
	}
	return h.entry
}

// empty reports whether the kernel holds no element of h.
func (h *frontendState) empty() bool {
	return h.equal(&frontendState{name: h.name, balance: h.balance, loadBalancer: h.loadBalancer})
}

// equal reports whether h and o have the same elements.
func (h *frontendState) equal(o *frontendState) bool {
	return h.name == o.name && h.entry == o.entry && h.balance == o.balance && h.loadBalancer == o.loadBalancer && h.tallies == o.tallies &&
		slices.Equal(h.slots, o.slots) && (h.extra == o.extra || h.extraOrZero().equal(o.extraOrZero()))
}

func (m extraState) equal(o extraState) bool {
	return m.internal == o.internal && m.external == o.external && slices.Equal(m.externalSlots, o.externalSlots) &&
		m.affinityID == o.affinityID && m.affinityIDExternal == o.affinityIDExternal && m.duration == o.duration && m.seconds == o.seconds &&
		m.sources.Equal(o.sources)
}

// verdicts returns the IDs that h has.
func (h *frontendState) verdicts() [3]verdictID {
	all := [3]verdictID{h.entry}
	if h.extra != nil {
		all[1], all[2] = h.extra.internal, h.extra.external
	}
	return all
}

// countUses adds d to the uses of the load-balancing chains that h leads to.
func (h *frontendState) countUses(uses map[verdictID]int, d int) {
	for _, v := range h.verdicts() {
		if v.balances() {
			uses[v] += d
		}
	}
}

// render returns what the kernel must hold for f, given what it holds now.
func (s *state) render(was *frontendState, f *service.Frontend, traffic bool) *frontendState {
	if f == nil {
		return &frontendState{}
	}
	affinity, before := f.Affinity > 0, was.extraOrZero()
	is := &frontendState{name: f.Service.String(), balance: f.Balance, loadBalancer: f.LoadBalancer, slots: s.fillSlots(was.slots, f.Internal, f.Balance)}
	is4 := f.Addr.Addr().Is4()
	verdict := s.chainFor(was.internalVerdict(), verdictFor(f.Internal, f.Balance, len(is.slots), f.NodePort(), false, affinity), is4)
	now := extraState{sources: nftset.SourcesOf(f)}
	if affinity {
		now.local = f.Internal.Local
		now.affinityID = s.affinityIDOf(affinityPortKey{is.name, is4, now.local})
		now.seconds = uint32(max(f.Affinity/time.Second, 1))
		now.duration = s.durationIndexOf(now.seconds)
	}
	if !f.Internal.Equal(f.External) {
		now.externalSlots = s.fillSlots(before.externalSlots, f.External, f.Balance)
		now.external = s.chainFor(before.external, verdictFor(f.External, f.Balance, len(now.externalSlots), f.NodePort(), true, affinity), is4)
		if affinity {
			now.localExternal = f.External.Local
			now.affinityIDExternal = s.affinityIDOf(affinityPortKey{is.name, is4, now.localExternal})
		}
	}
	is.entry = verdict
	if now.sources.Restricted || now.external != 0 {
		is.entry, now.internal = verdictPolicyCheck, verdict
	}
	if !now.equal(extraState{}) {
		is.extra = &now
	}
	is.tallies = is.counted(was.tallies, traffic)
	return is
}

// fillSlots returns the slots for a route. Frontends of one Service often have the same
// route, so they share their slots where possible.
func (s *state) fillSlots(was []slot, r *service.Route, balance service.Algorithm) []slot {
	if len(was) > 0 && balance != service.Maglev {
		return fill(was, r.Endpoints, balance)
	}
	if s.lastFill.route != r || s.lastFill.balance != balance {
		s.lastFill.route, s.lastFill.balance, s.lastFill.slots = r, balance, fill(nil, r.Endpoints, balance)
	}
	return s.lastFill.slots
}

// maxDedicated is how many frontends have a chain for themselves alone. The kernel validates all
// of them with each change of one, 11 ms for 1,000: without a limit, a user with thousands would delay
// the changes of all.
const maxDedicated = 512

// chainFor returns the ID of the chain for the verdict what: what itself or, for round
// robin, the ID of a chain for this frontend only, as long as there are few. Who shares a chain
// takes turns with others that have as many slots. was is the ID until now.
func (s *state) chainFor(was, what verdictID, is4 bool) verdictID {
	if !what.balances() || what&verdictAlgorithm != verdictRoundRobin || was == what {
		return what
	}
	shared := what
	if what |= verdictIPv6Only; is4 {
		what ^= verdictIPv6Only | verdictIPv4Only
	}
	if was.isDedicated() && s.verdictOf(was) == what {
		if _, there := s.chains[was]; !there {
			s.addDedicated(was, what)
		}
		return was
	}
	if s.dedicated >= maxDedicated {
		return shared
	}
	// There are more numbers than frontends, so a number is always free.
	number, _ := lb.NextFree(uint32(s.lastDedicated), uint32(^verdictDedicatedMask), func(n uint32) bool { return s.verdictOf(verdictDedicated|verdictID(n)) != 0 })
	s.lastDedicated = verdictID(number)
	s.addDedicated(verdictDedicated|s.lastDedicated, what)
	return verdictDedicated | s.lastDedicated
}

// addDedicated notes a chain for one frontend only, which has yet to be written.
func (s *state) addDedicated(v, does verdictID) {
	s.chains[v] = lbChain{verdict: does}
	s.dedicated++
}
