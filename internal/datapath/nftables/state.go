package nftables

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// state is the state of the whole table in the kernel.
type state struct {
	tableName  string // for Explain
	frontends  map[service.Key]*frontendState
	hairpins   nftset.Counts // addresses of local endpoints, with the number of frontends that need them
	clusterIPs nftset.Counts // ClusterIPs, with the number of frontends that have them
	externals  nftset.Counts // load balancers' addresses and external IPs, with the number of frontends that have them
	settings   nodeSettings

	chainUses     map[verdictID]int     // the number of elements that lead to each load-balancing chain
	chains        map[verdictID]lbChain // the load-balancing chains
	shared        map[verdictID]bool    // which shared chains of this version exist, by verdictID.shared
	lastDedicated verdictID             // the number of the newest dedicated chain
	dedicated     int                   // the number of dedicated chains

	affinityIDs    map[affinityPortKey]affinityID
	lastAffinityID [2]affinityID         // the newest ID with many buckets, and with few (without its bit affinityFew)
	affinityOwners map[affinityOwner]int // the number of IDs of each owner
	affinityPorts  map[affinityID]*affinityPort
	durations      [maxDurations]uint32     // the durations in use in seconds; 0: the index is free
	updateChains   map[durationIndex]uint32 // the durations in seconds of the affinity-update chains that exist
	confirms       map[durationIndex]uint32 // as read: the durations with a chain for answers
	staleUpdates   bool                     // another version wrote the affinity-update chains

	// lastFill is the last result of fillSlots.
	lastFill struct {
		route   *service.Route
		balance service.Algorithm
		slots   []slot
	}
}

// An lbChain is a load-balancing chain. If neither current nor stale is set, the Sync in progress writes it.
type lbChain struct {
	verdict verdictID // what the chain does; it differs from the chain's ID only for dedicated chains
	current bool      // the chain exists, and this version wrote it
	stale   bool      // the chain exists, and another version wrote it
}

func newState() *state {
	return &state{
		frontends:      map[service.Key]*frontendState{},
		hairpins:       nftset.Counts{},
		clusterIPs:     nftset.Counts{},
		externals:      nftset.Counts{},
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

// at returns the state of the frontend k. It is a zero value if the kernel has no element of k.
func (s *state) at(k service.Key) *frontendState {
	if h := s.frontends[k]; h != nil {
		return h
	}
	return &frontendState{}
}

// verdictOf returns the verdict of a dedicated chain, or 0 if there is no chain with the ID v.
func (s *state) verdictOf(v verdictID) verdictID { return s.chains[v].verdict }

// set replaces the state of the frontend k, and counts the chains and affinity IDs in use.
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

// trackAffinity records whether the frontend k, with the state h, uses its affinity IDs.
func (s *state) trackAffinity(k service.Key, h *frontendState, uses bool) {
	if h.extra != nil && h.extra.affinityID|h.extra.affinityIDExternal != 0 {
		s.trackAffinityID(h.extra.affinityID, k, uses)
		s.trackAffinityID(h.extra.affinityIDExternal, k, uses)
	}
}

// nodeSettings is the form of Settings in the kernel. NodePorts has the prefixes without hosts: in these prefixes the
// kernel finds out which addresses are the node's. NodeIPs is empty.
type nodeSettings struct {
	service.Settings
	hosts []netip.Addr // addresses in NodePorts that are known to be the node's
}

func nodeSettingsOf(s service.Settings) nodeSettings {
	n := nodeSettings{Settings: s}
	n.NodePorts, n.NodeIPs = nil, nil
	for _, a := range s.NodeIPs {
		a = a.Unmap().WithZone("")
		serves := slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
		if serves && !a.IsLoopback() && !slices.Contains(n.hosts, a) {
			n.hosts = append(n.hosts, a)
		}
	}
	for _, p := range s.NodePorts {
		if !p.IsSingleIP() || !slices.Contains(n.hosts, p.Addr()) {
			n.NodePorts = append(n.NodePorts, p)
		}
	}
	return n
}

// table is the inverse of nodeSettingsOf, except for NodeIPs that do not serve NodePorts.
func (n *nodeSettings) table() service.Settings {
	s := n.Settings
	s.NodeIPs, s.NodePorts = n.hosts, nil
	all := slices.Clone(n.NodePorts)
	for _, a := range n.hosts {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, is4 := range nftset.Families {
		for _, r := range nft.Ranges(all, is4) {
			s.NodePorts = append(s.NodePorts, r.Prefixes()...)
		}
	}
	return s
}
