package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// read returns what the kernel holds. If a set is missing, because the table is of an older
// program, read reads the set under its former name.
func read(ctx context.Context, t *nft.Table) (*state, error) {
	r := reader{ctx: ctx, Table: t, state: newState(), former: map[string]string{}}
	for _, one := range renamed() {
		r.former[one.Name] = one.Former
	}
	r.dispatch()
	for _, f := range families {
		r.entries(f.is4, frontends, false, func(h *frontendState, v verdictID) { h.entry = v })
		r.entries(f.is4, nodeports, true, func(h *frontendState, v verdictID) { h.entry = v })
		r.entries(f.is4, frontendsInternal, false, func(h *frontendState, v verdictID) { h.ensureExtra().internal = v })
		r.entries(f.is4, nodeportsInternal, true, func(h *frontendState, v verdictID) { h.ensureExtra().internal = v })
		r.entries(f.is4, frontendsExternal, false, func(h *frontendState, v verdictID) { h.ensureExtra().external = v })
		r.entries(f.is4, nodeportsExternal, true, func(h *frontendState, v verdictID) { h.ensureExtra().external = v })
		r.slots(f.is4, endpoints, false)
		r.slots(f.is4, nodeportEndpoints, true)
		r.sourceRanges(f.is4)
		for _, nodePort := range []bool{false, true} {
			r.affinityIDs(f.is4, nodePort, false)
			r.affinityIDs(f.is4, nodePort, true)
		}
		r.members(f.is4, hairpin, func(a netip.Addr) { r.state.hairpins[a] = 1 })
		r.members(f.is4, clusterIPs, func(a netip.Addr) { r.state.clusterIPs[a] = 1 })
		facts := &r.state.settings
		r.members(f.is4, nodeportHosts, func(a netip.Addr) { facts.hosts = append(facts.hosts, a) })
		facts.pods = append(facts.pods, r.prefixes(pods, f.is4)...)
		facts.serviceCIDRs = append(facts.serviceCIDRs, r.prefixes(serviceCIDRs, f.is4)...)
		facts.nodePorts = append(facts.nodePorts, r.prefixes(nodeportAddresses, f.is4)...)
	}
	r.tallies()
	r.podInterfaces()
	r.affinityUpdates()
	for k, h := range r.state.frontends {
		h.countUses(r.state.chainUses, +1)
		r.state.trackAffinity(k, h, true)
	}
	return r.state, r.err
}

// reader reads set after set until the first error.
type reader struct {
	ctx context.Context // of this reading
	*nft.Table
	state *state
	// former has the former names of sets that are missing.
	former map[string]string
	err    error
}

// each calls f for every element of a set.
func (r *reader) each(name string, f func(e nft.Element) error) {
	if r.err == nil {
		err := r.Elements(r.ctx, name, f)
		if former := r.former[name]; former != "" && errors.Is(err, os.ErrNotExist) {
			err = r.Elements(r.ctx, former, f)
		}
		r.err = r.ignoreMissing(err)
	}
}

// ignoreMissing ignores the error of a missing set.
func (r *reader) ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// frontend returns the state of a frontend for the caller to fill.
func (r *reader) frontend(k service.Key) *frontendState {
	h := r.state.frontends[k]
	if h == nil {
		h = &frontendState{}
		r.state.frontends[k] = h
	}
	return h
}

// ensureExtra returns extra for the caller to fill.
func (h *frontendState) ensureExtra() *extraState {
	if h.extra == nil {
		h.extra = &extraState{}
	}
	return h.extra
}

func (r *reader) entries(is4 bool, s set, nodePort bool, put func(*frontendState, verdictID)) {
	r.each(s.name(is4), func(e nft.Element) error {
		k, err := nftset.ParseFrontendKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		v, err := parseVerdict(e.Data)
		if err != nil {
			return err
		}
		h := r.frontend(k)
		put(h, v)
		if s == frontends || s == nodeports {
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
		addr, _, err := nftset.ParseAddrPort(e.Data, is4)
		if err != nil {
			return err
		}
		weight, err := parseWeight(e.Comment)
		if err != nil {
			return err
		}
		h := r.frontend(k)
		list := &h.slots
		if at >= externalOffset {
			list, at = &h.ensureExtra().externalSlots, at-externalOffset
		}
		if at >= maxSlots {
			return fmt.Errorf("slot %d of %v is out of range", at, k)
		}
		if *list == nil {
			n, _ := h.internalVerdict().slots()
			*list = make([]slot, 0, min(max(n, at+1), maxSlots))
		}
		for len(*list) <= int(at) {
			*list = append(*list, slot{})
		}
		(*list)[at] = slot{addr.Addr(), addr.Port(), weight}
		return nil
	})
}

// affinityIDs reads the affinity IDs of frontends.
func (r *reader) affinityIDs(is4, nodePort, external bool) {
	r.each(affinityIDSet(nodePort, external).name(is4), func(e nft.Element) error {
		k, err := nftset.ParseFrontendKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		number, err := parseVerdict(e.Data)
		if err != nil {
			return err
		}
		name, seconds, err := parseAffinityComment(e.Comment, is4)
		if err != nil {
			return err
		}
		i, m := affinityID(number)&affinityMask, r.frontend(k).ensureExtra()
		m.seconds, m.duration = seconds, durationIndex(affinityID(number)&^affinityMask>>durationShift)
		if external {
			m.affinityIDExternal, m.localExternal = i, name.local
		} else {
			m.affinityID, m.local = i, name.local
		}
		if i&^affinityNumber == affinityRange && r.state.affinityPorts[i] == nil { // else an older program wrote it
			r.state.registerAffinityID(name, i)
		}
		return nil
	})
}

// sourceRanges reads the sources that frontends serve.
func (r *reader) sourceRanges(is4 bool) {
	r.each(sourceRestricted.name(is4), func(e nft.Element) error {
		k, err := nftset.ParseFrontendKey(e.Key, is4, false)
		if err == nil {
			r.frontend(k).ensureExtra().restricted = true
		}
		return err
	})
	size := nftset.AddrSize(is4)
	r.each(sourceRanges.name(is4), func(e nft.Element) error {
		if len(e.Key) < size || len(e.Last) != len(e.Key) {
			return fmt.Errorf("range has %d and %d bytes", len(e.Key), len(e.Last))
		}
		k, err := nftset.ParseFrontendKey(e.Key[:len(e.Key)-size], is4, false)
		if err != nil {
			return err
		}
		from, _ := netip.AddrFromSlice(e.Key[len(e.Key)-size:])
		to, _ := netip.AddrFromSlice(e.Last[len(e.Last)-size:])
		m := r.frontend(k).ensureExtra()
		m.sources = append(m.sources, netipx.IPRangeFrom(from, to))
		slices.SortFunc(m.sources, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
		return nil
	})
}

// members reads a set of addresses; in a hairpin's key the address is the first field.
func (r *reader) members(is4 bool, s set, add func(netip.Addr)) {
	r.each(s.name(is4), func(e nft.Element) error {
		addr, ok := netip.AddrFromSlice(e.Key[:min(len(e.Key), nftset.AddrSize(is4))])
		if !ok {
			return fmt.Errorf("address has %d bytes", len(e.Key))
		}
		add(addr)
		return nil
	})
}

// dispatch reads which chains exist, and the verdicts of the chains for one frontend only.
func (r *reader) dispatch() {
	read := func(name string, put func(v, does verdictID)) {
		r.each(name, func(e nft.Element) error {
			v, err := parseVerdict(e.Key)
			if err != nil || !v.balances() {
				return err
			}
			does := v
			if v.isDedicated() {
				if does, err = parseVerdictText(e.Comment); err != nil {
					return err
				}
				r.state.lastDedicated = max(r.state.lastDedicated, v&^verdictDedicatedMask)
			}
			put(v, does)
			return nil
		})
	}
	read(formerDispatchMap, func(v, does verdictID) { r.state.formerChains[v] = does })
	read(dispatchMap, func(v, does verdictID) { r.state.chains[v] = lbChain{does, true} })
}

// affinityUpdates reads the durations that have a chain.
func (r *reader) affinityUpdates() {
	read := func(name string, put func(at durationIndex, seconds uint32)) {
		r.each(name, func(e nft.Element) error {
			number, err := parseVerdict(e.Key)
			if err != nil {
				return err
			}
			seconds, err := parseSeconds(e.Comment)
			put(durationIndex(affinityID(number)&^affinityMask>>durationShift), seconds)
			return err
		})
	}
	read(formerAffinityUpdates, func(at durationIndex, seconds uint32) { r.state.durations[at] = seconds })
	read(affinityUpdates, func(at durationIndex, seconds uint32) {
		r.state.durations[at], r.state.updateChains[at] = seconds, seconds
	})
}

// podInterfaces reads the interfaces of pods.
func (r *reader) podInterfaces() {
	if r.err == nil {
		r.state.settings.podInterfaces, r.err = r.Links(r.ctx, podInterfaces)
		r.err = r.ignoreMissing(r.err)
	}
}

// prefixes reads an interval set of addresses.
func (r *reader) prefixes(s set, is4 bool) (all []netip.Prefix) {
	if r.err == nil {
		all, r.err = r.Prefixes(r.ctx, s.name(is4))
		r.err = r.ignoreMissing(r.err)
	}
	return all
}
