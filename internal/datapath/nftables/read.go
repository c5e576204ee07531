package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// read reads the state of the kernel.
func (d *Datapath) read(ctx context.Context) (*state, error) {
	r := reader{d.syncer.Reader(ctx), newState()}
	r.state.tableName = d.name
	r.dispatch()
	for _, is4 := range nftset.Families {
		r.entries(is4, nftset.Frontends, false, func(h *frontendState, v verdictID) { h.entry = v })
		r.entries(is4, nftset.Nodeports, true, func(h *frontendState, v verdictID) { h.entry = v })
		r.entries(is4, frontendsInternal, false, func(h *frontendState, v verdictID) { h.ensureExtra().internal = v })
		r.entries(is4, nodeportsInternal, true, func(h *frontendState, v verdictID) { h.ensureExtra().internal = v })
		r.entries(is4, nftset.FrontendsExternal, false, func(h *frontendState, v verdictID) { h.ensureExtra().external = v })
		r.entries(is4, nftset.NodeportsExternal, true, func(h *frontendState, v verdictID) { h.ensureExtra().external = v })
		r.slots(is4, endpoints, false)
		r.slots(is4, nodeportEndpoints, true)
		r.Sources(is4, func(k service.Key) *nftset.Sources { return &r.frontend(k).ensureExtra().sources })
		for _, nodePort := range []bool{false, true} {
			r.affinityIDs(is4, nodePort, false)
			r.affinityIDs(is4, nodePort, true)
		}
		r.Addrs(nftset.Hairpin, is4, func(a netip.Addr) { r.state.hairpins[a] = 1 })
		r.Addrs(nftset.ClusterIPs, is4, func(a netip.Addr) { r.state.clusterIPs[a] = 1 })
		r.Addrs(nftset.ExternalAddresses, is4, func(a netip.Addr) { r.state.externals[a] = 1 })
		r.Addrs(nodeportHosts, is4, func(a netip.Addr) { r.state.settings.hosts = append(r.state.settings.hosts, a) })
	}
	r.state.settings.Settings = r.Settings()
	r.tallies()
	r.affinityUpdates()
	for k, h := range r.state.frontends {
		h.countUses(r.state.chainUses, +1)
		r.state.trackAffinity(k, h, true)
	}
	return r.state, r.Err()
}

// reader reads a state.
type reader struct {
	*nftset.Reader
	state *state
}

// frontend returns the state of a frontend, for the caller to fill.
func (r *reader) frontend(k service.Key) *frontendState {
	return nftset.Ensure(r.state.frontends, k)
}

// ensureExtra returns extra, for the caller to fill. A missing one is added.
func (h *frontendState) ensureExtra() *extraState {
	if h.extra == nil {
		h.extra = &extraState{}
	}
	return h.extra
}

// entries reads a map of verdicts. put stores a verdict. Only the maps frontends and nodeports have comments.
func (r *reader) entries(is4 bool, s nftset.Set, nodePort bool, put func(*frontendState, verdictID)) {
	r.Frontends(s, is4, nodePort, func(k service.Key, e nft.Element) error {
		v, err := parseVerdict(e.Data)
		if err != nil {
			return err
		}
		h := r.frontend(k)
		put(h, v)
		if s == nftset.Frontends || s == nftset.Nodeports {
			return h.parseComment(e.Comment)
		}
		return nil
	})
}

// slots reads a map of endpoints.
func (r *reader) slots(is4 bool, s nftset.Set, nodePort bool) {
	r.Each(s.Name(is4), func(e nft.Element) error {
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
		(*list)[at] = newSlot(addr, weight)
		return nil
	})
}

// affinityIDs reads a map of affinity IDs.
func (r *reader) affinityIDs(is4, nodePort, external bool) {
	r.Frontends(affinityIDSet(nodePort, external), is4, nodePort, func(k service.Key, e nft.Element) error {
		number, err := parseVerdict(e.Data)
		if err != nil {
			return err
		}
		name, seconds, err := parseAffinityComment(e.Comment, is4)
		if err != nil {
			return err
		}
		i, extra := affinityID(number)&affinityMask, r.frontend(k).ensureExtra()
		extra.seconds, extra.duration = seconds, durationIndex(affinityID(number)&^affinityMask>>durationShift)
		if external {
			extra.affinityIDExternal, extra.localExternal = i, name.local
		} else {
			extra.affinityID, extra.local = i, name.local
		}
		if i&^affinityNumber == affinityRange && r.state.affinityPorts[i] == nil { // otherwise another program wrote it
			r.state.registerAffinityID(name, i)
		}
		return nil
	})
}

// dispatch reads which load-balancing chains exist, and the verdicts of dedicated chains.
func (r *reader) dispatch() {
	r.Each(dispatchMap, func(e nft.Element) error {
		v, err := parseVerdict(e.Key)
		if err != nil || !v.balances() {
			return err
		}
		verdict := v
		if v.isDedicated() {
			if verdict, err = parseVerdictText(e.Comment); err != nil {
				return err
			}
			r.state.lastDedicated = max(r.state.lastDedicated, v&^verdictDedicatedMask)
			r.state.dedicated++
		}
		r.state.chains[v] = lbChain{verdict: verdict, current: true}
		r.state.shared[verdict.shared()] = true
		return nil
	})
}

// affinityUpdates reads the durations that have chains.
func (r *reader) affinityUpdates() {
	read := func(name string, put func(at durationIndex, seconds uint32)) {
		r.Each(name, func(e nft.Element) error {
			number, err := parseVerdict(e.Key)
			if err != nil {
				return err
			}
			seconds, err := parseSeconds(e.Comment)
			put(durationIndex(affinityID(number)&^affinityMask>>durationShift), seconds)
			return err
		})
	}
	read(affinityUpdates, func(at durationIndex, seconds uint32) {
		r.state.durations[at], r.state.updateChains[at] = seconds, seconds
	})
	read(affinityConfirms, func(at durationIndex, seconds uint32) { r.state.confirms[at] = seconds })
}
