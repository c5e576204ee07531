package nftables

import (
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A frontendState has the elements of one frontend. Each frontend has one, so it is small: fields that few frontends
// use are in extra. The zero value is a frontend without elements.
type frontendState struct {
	name         string // the Service port
	slots        []slot
	extra        *extraState // nil: all of its fields are zero
	entry        verdictID   // in the map frontends; verdictPolicyCheck: the verdicts are in extra
	balance      service.Algorithm
	loadBalancer bool // the address is that of a load balancer; only the comment has it
	tallies      tally
}

// An extraState has the fields that only some frontends use.
type extraState struct {
	internal, external verdictID // in the maps frontends-internal and frontends-external; 0: no element
	externalSlots      []slot

	// Affinity: the ID of each list, Route.Local of each list, and the duration.
	affinityID, affinityIDExternal affinityID
	local, localExternal           bool
	duration                       durationIndex // the index of the duration
	seconds                        uint32        // the duration; 0: no affinity

	sources nftset.Sources
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

// empty reports whether h has no elements.
func (h *frontendState) empty() bool {
	return h.equal(&frontendState{name: h.name, balance: h.balance, loadBalancer: h.loadBalancer})
}

// equal reports whether h and o have the same elements.
func (h *frontendState) equal(o *frontendState) bool {
	return h.name == o.name && h.entry == o.entry && h.balance == o.balance &&
		h.loadBalancer == o.loadBalancer && h.tallies == o.tallies &&
		slices.Equal(h.slots, o.slots) && (h.extra == o.extra || h.extraOrZero().equal(o.extraOrZero()))
}

func (m extraState) equal(o extraState) bool {
	return m.internal == o.internal && m.external == o.external && slices.Equal(m.externalSlots, o.externalSlots) &&
		m.affinityID == o.affinityID && m.affinityIDExternal == o.affinityIDExternal &&
		m.duration == o.duration && m.seconds == o.seconds &&
		m.sources.Equal(o.sources)
}

// verdicts returns the verdict IDs in the elements of h. An ID may be 0.
func (h *frontendState) verdicts() [3]verdictID {
	all := [3]verdictID{h.entry}
	if h.extra != nil {
		all[1], all[2] = h.extra.internal, h.extra.external
	}
	return all
}

// countUses adds delta to the number of uses of each load-balancing chain that h leads to.
func (h *frontendState) countUses(uses map[verdictID]int, delta int) {
	for _, v := range h.verdicts() {
		if v.balances() {
			uses[v] += delta
		}
	}
}

// render returns the elements that f needs, given the present elements. A nil f needs none. traffic says that traffic
// is counted.
func (s *state) render(was *frontendState, f *service.Frontend, traffic bool) *frontendState {
	if f == nil {
		return &frontendState{}
	}
	affinity, wasExtra := f.Affinity > 0, was.extraOrZero()
	is := &frontendState{
		name: f.Service.String(), balance: f.Balance, loadBalancer: f.LoadBalancer,
		slots: s.fillSlots(was.slots, f.Internal, f.Balance),
	}
	is4 := f.Addr.Addr().Is4()
	verdict := s.chainFor(was.internalVerdict(), verdictFor(f.Internal, f.Balance, len(is.slots), f.NodePort(), false, affinity), is4)
	extra := extraState{sources: nftset.SourcesOf(f)}
	if affinity {
		extra.local = f.Internal.Local
		extra.affinityID = s.affinityIDOf(affinityPortKey{is.name, is4, extra.local})
		extra.seconds = uint32(max(f.Affinity/time.Second, 1))
		extra.duration = s.durationIndexOf(extra.seconds)
	}
	if !f.Internal.Equal(f.External) {
		extra.externalSlots = s.fillSlots(wasExtra.externalSlots, f.External, f.Balance)
		external := verdictFor(f.External, f.Balance, len(extra.externalSlots), f.NodePort(), true, affinity)
		extra.external = s.chainFor(wasExtra.external, external, is4)
		if affinity {
			extra.localExternal = f.External.Local
			extra.affinityIDExternal = s.affinityIDOf(affinityPortKey{is.name, is4, extra.localExternal})
		}
	}
	is.entry = verdict
	if extra.sources.Restricted || extra.external != 0 {
		is.entry, extra.internal = verdictPolicyCheck, verdict
	}
	if !extra.equal(extraState{}) {
		is.extra = &extra
	}
	is.tallies = is.newTallies(was.tallies, traffic)
	return is
}

// fillSlots returns the slots for a route, given the present slots. Frontends of a Service often have the same route,
// so new lists share their memory.
func (s *state) fillSlots(was []slot, r *service.Route, balance service.Algorithm) []slot {
	if len(was) > 0 && balance != service.Maglev {
		return fill(was, r.Endpoints, balance)
	}
	if s.lastFill.route != r || s.lastFill.balance != balance {
		s.lastFill.route, s.lastFill.balance, s.lastFill.slots = r, balance, fill(nil, r.Endpoints, balance)
	}
	return s.lastFill.slots
}

// maxDedicated is the largest number of dedicated chains. When one chain changes, the kernel validates all of them: 11
// ms for 1,000. Without a limit, one user with thousands of frontends would delay the changes of all users.
const maxDedicated = 512

// chainFor returns the ID of the chain for a verdict. was is the frontend's present ID.
//
// With round robin, the counter of turns belongs to a rule. So each frontend gets a dedicated chain with a number as
// its ID. After maxDedicated, frontends share a chain and its turns with others that have as many slots. All other
// algorithms share chains: the ID is the verdict.
func (s *state) chainFor(was, verdict verdictID, is4 bool) verdictID {
	if !verdict.balances() || verdict&verdictAlgorithm != verdictRoundRobin || was == verdict {
		return verdict
	}
	shared := verdict
	if verdict |= verdictIPv6Only; is4 {
		verdict ^= verdictIPv6Only | verdictIPv4Only
	}
	if was.isDedicated() && s.verdictOf(was) == verdict {
		return was
	}
	if s.dedicated >= maxDedicated {
		return shared
	}
	// There are more numbers than frontends, so NextFree always finds one.
	number, _ := lb.NextFree(uint32(s.lastDedicated), uint32(^verdictDedicatedMask), func(n uint32) bool {
		return s.verdictOf(verdictDedicated|verdictID(n)) != 0
	})
	s.lastDedicated = verdictID(number)
	s.dedicated++
	s.chains[verdictDedicated|s.lastDedicated] = lbChain{verdict: verdict} // the Sync writes the chain later
	return verdictDedicated | s.lastDedicated
}
