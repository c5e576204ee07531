package nftables

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// state is what the kernel holds, all of it.
type state struct {
	frontends  map[service.Key]*frontendState
	hairpins   nftset.Counts // how many frontends need it; 1 if unknown
	clusterIPs nftset.Counts // how many frontends have it; 1 if unknown
	settings   nodeSettings

	chainUses     map[verdictID]int     // how many elements lead there
	chains        map[verdictID]lbChain // the chains that exist
	shared        map[verdictID]bool    // the shared chains of this program that exist, by verdictID.shared
	lastDedicated verdictID             // the number of the last chain for one frontend only
	dedicated     int                   // how many of chains are for one frontend only

	affinityIDs    map[affinityPortKey]affinityID
	lastAffinityID [2]affinityID         // without and with affinityFew, which they lack
	affinityOwners map[affinityOwner]int // how many IDs they have
	affinityPorts  map[affinityID]*affinityPort
	durations      [maxDurations]uint32     // in use, in seconds; 0: free
	updateChains   map[durationIndex]uint32 // the chains in the kernel, and their seconds
	confirms       map[durationIndex]uint32 // as read: those that have a chain for answers too
	staleUpdates   bool                     // another program wrote updateChains

	// lastFill is the latest result of fillSlots: frontends of a Service often have the same route.
	lastFill struct {
		route   *service.Route
		balance service.Algorithm
		slots   []slot
	}
}

// An lbChain is a load-balancing chain.
type lbChain struct {
	verdict verdictID // the verdict that it gives
	current bool      // it exists, and is of this program
	stale   bool      // it exists, and another version wrote it
}

func newState() *state {
	return &state{
		frontends:      map[service.Key]*frontendState{},
		hairpins:       nftset.Counts{},
		clusterIPs:     nftset.Counts{},
		chainUses:      map[verdictID]int{},
		chains:         map[verdictID]lbChain{},
		shared:         map[verdictID]bool{},
		affinityIDs:    map[affinityPortKey]affinityID{},
		affinityPorts:  map[affinityID]*affinityPort{},
		affinityOwners: map[affinityOwner]int{},
		confirms:       map[durationIndex]uint32{},
		updateChains:   map[durationIndex]uint32{},
	}
}

// at returns the state of k, which is empty if the kernel holds nothing.
func (s *state) at(k service.Key) *frontendState {
	if h := s.frontends[k]; h != nil {
		return h
	}
	return &frontendState{}
}

// verdictOf returns the verdict of a chain that serves one frontend only.
func (s *state) verdictOf(v verdictID) verdictID {
	return s.chains[v].verdict
}

// set replaces the state of k, and counts the chains and affinity IDs in use.
func (s *state) set(k service.Key, is *frontendState) {
	was := s.at(k)
	was.countUses(s.chainUses, -1)
	is.countUses(s.chainUses, +1)
	s.trackAffinity(k, was, false)
	s.trackAffinity(k, is, true)
	if is.empty() {
		delete(s.frontends, k)
		return
	}
	s.frontends[k] = is
}

// trackAffinity records that the frontend k uses its affinity IDs, or no longer uses them.
func (s *state) trackAffinity(k service.Key, h *frontendState, has bool) {
	if h.extra != nil && h.extra.affinityID|h.extra.affinityIDExternal != 0 {
		s.trackAffinityID(h.extra.affinityID, k, has)
		s.trackAffinityID(h.extra.affinityIDExternal, k, has)
	}
}

// nodeSettings are the Settings as the kernel has them.
type nodeSettings struct {
	// NodePorts are prefixes without hosts: an address in them serves NodePorts if the kernel
	// says that it is local. NodeIPs is empty.
	service.Settings
	hosts []netip.Addr // they serve NodePorts, and are known to be the node's
}

func nodeSettingsOf(s service.Settings) nodeSettings {
	f := nodeSettings{Settings: s}
	f.NodePorts, f.NodeIPs = nil, nil
	for _, a := range s.NodeIPs {
		a = a.Unmap().WithZone("")
		serves := slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
		if serves && !a.IsLoopback() && !slices.Contains(f.hosts, a) {
			f.hosts = append(f.hosts, a)
		}
	}
	for _, p := range s.NodePorts {
		if !p.IsSingleIP() || !slices.Contains(f.hosts, p.Addr()) {
			f.NodePorts = append(f.NodePorts, p)
		}
	}
	return f
}

// table is the inverse of nodeSettingsOf, except for NodeIPs that do not serve NodePorts.
func (f *nodeSettings) table() service.Settings {
	s := f.Settings
	s.NodeIPs, s.NodePorts = f.hosts, nil
	all := slices.Clone(f.NodePorts)
	for _, a := range f.hosts {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, is4 := range nftset.Families {
		for _, r := range nft.Ranges(all, is4) {
			s.NodePorts = append(s.NodePorts, r.Prefixes()...)
		}
	}
	return s
}
