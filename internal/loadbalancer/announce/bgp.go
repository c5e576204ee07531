package announce

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// A BGPInput is everything that a node's BGP depends on. It ignores L2Advertisements.
type BGPInput struct {
	Input
	Node           string // the node of the sessions
	Advertisements []*BGPAdvertisement
	Peers          []*BGPPeer
	BFDProfiles    []*BFDProfile
	Communities    []*Community
	// Password returns the password of a Secret; false if there is none.
	Password func(secret string) (string, bool)
	// LocalEndpoints returns the number of the node's endpoints of a Service in an IP family.
	LocalEndpoints func(name api.Name, is4 bool) int
	// Unserved returns the reason why the node's kernel does not have a Service's rules; empty if it has.
	Unserved func(*Service) string
	// Neighbour returns the address of the router behind an interface; invalid if it is unknown. Nil means always unknown.
	Neighbour func(device string) netip.Addr
	// PodCIDRs are the node's podCIDRs if routers carry the pods' packets.
	PodCIDRs []netip.Prefix
	// OnLink reports whether an address is in one of the node's networks. Nil means never.
	OnLink func(netip.Addr) bool
	// ReflectorPort is the TCP port of route reflectors; 0 if there are none.
	ReflectorPort uint16
}

// A Route tells a router that this node leads to a prefix.
type Route struct {
	Prefix netip.Prefix
	// NextHop is the node's address in the prefix's family if the session has the other family; zero means the session's.
	NextHop     netip.Addr
	LocalPref   uint32           // within an AS; 0: the default
	Communities []CommunityValue // sorted
	// Endpoints is the number of the node's endpoints, by which routers share the connections; 0 if they do not.
	Endpoints int
	Services  []api.Name // with addresses in the prefix, sorted
	// Leaving means that the node should not announce the prefix any more, but still carries its packets. The node asks
	// routers to prefer other routes before it withdraws this one (RFC 8326).
	Leaving bool
	// ASPath is the path of a router's route that a reflector passes on.
	ASPath []uint32
}

// Equal reports whether both routes are the same to a router.
func (r Route) Equal(o Route) bool {
	return r.Prefix == o.Prefix && r.NextHop == o.NextHop && r.LocalPref == o.LocalPref && r.Endpoints == o.Endpoints && r.Leaving == o.Leaving &&
		slices.Equal(r.Communities, o.Communities) && slices.Equal(r.ASPath, o.ASPath)
}

// A LeftOut is an address that the node does not announce to a router, with the reason.
type LeftOut struct {
	Addr     netip.Addr
	Services []api.Name
	Peer     string // empty means all
	Reason   string
}

// A BGPDecision has the sessions and routes of a node.
type BGPDecision struct {
	Sessions []Session     // sorted by peer
	LeftOut  []LeftOut     // sorted by address and peer
	Problems []PeerProblem // sorted by peer
	// Reflector is set if the node is a route reflector. Sessions with reflectors carry only podCIDRs.
	Reflector *Reflector
}

// The reasons of an address without route. Other reasons come from Decide.
const (
	NoBGPAdvertisement = "no BGPAdvertisement is for its pool and Service"
	NotThisNode        = "no BGPAdvertisement's nodeSelectors match this node"
	NotForPeer         = "no BGPAdvertisement is for this BGPPeer"
	NoLocalEndpoint    = "this node has no endpoint of its Service (externalTrafficPolicy: Local)"
	NoFamily           = "the session does not carry its address family [dualStackAddressFamily: true]"
	NoNextHop          = "this node has no address of its family for the next hop"
	NoPeers            = "no BGPPeer is for this node"
)

// self returns the node that decides; nil if the API server does not know it.
func (in BGPInput) self() *Node {
	for i := range in.Nodes {
		if in.Nodes[i].Name == in.Node {
			return &in.Nodes[i]
		}
	}
	return nil
}

// DecideBGP decides about every session of a node, and every address of every Service.
func DecideBGP(in BGPInput) BGPDecision {
	self := in.self()
	if self == nil {
		return BGPDecision{Problems: []PeerProblem{{NoSession: true, Reason: "the API server knows no node " + in.Node}}}
	}
	b := bgpDecider{in: in, self: self, aliases: communityAliases(in.Communities)}
	b.out.Sessions, b.out.Problems = in.sessions(self)
	b.routes = make([]map[netip.Prefix]*Route, len(b.out.Sessions))
	for i := range b.routes {
		b.routes[i] = map[netip.Prefix]*Route{}
	}
	sharing := in.sharing()
	for a, services := range sharing {
		if reason := b.address(a, services); reason != "" {
			b.leaveOut(a, services, "", reason)
		}
	}
	b.reflectors()
	for i, routes := range b.routes {
		b.podCIDRs(i)
		b.out.Sessions[i].Routes = sorted(routes)
	}
	slices.SortFunc(b.out.LeftOut, func(x, y LeftOut) int { return cmp.Or(x.Addr.Compare(y.Addr), strings.Compare(x.Peer, y.Peer)) })
	return b.out
}

// A bgpDecider collects a decision.
type bgpDecider struct {
	in      BGPInput
	self    *Node
	aliases map[string]string
	routes  []map[netip.Prefix]*Route // by session
	out     BGPDecision
}

func (b *bgpDecider) leaveOut(a netip.Addr, services []*Service, peer, reason string) {
	b.out.LeftOut = append(b.out.LeftOut, LeftOut{a, names(services), peer, reason})
}

// address decides about an address. reason is set if no router should have a route to it. Routers keep a route, marked as
// leaving, while the node still carries connections to the address.
func (b *bgpDecider) address(a netip.Addr, services []*Service) (reason string) {
	pools := b.in.poolsOf(a, services)
	if len(pools) == 0 {
		return NoPool
	}
	var ads []*BGPAdvertisement
	matching := 0
	for _, ad := range b.in.Advertisements {
		if !ad.isFor(pools, services) {
			continue
		}
		matching++
		if b.self.matches(ad.NodeSelectors) {
			ads = append(ads, ad)
		}
	}
	switch {
	case matching == 0:
		return NoBGPAdvertisement
	case len(ads) == 0:
		return NotThisNode
	}
	reason = b.self.unused()
	if len(b.out.Sessions) == 0 {
		return cmp.Or(reason, NoPeers)
	}
	nodes, no := b.in.serving(services)
	switch {
	case no != "":
		return cmp.Or(reason, no)
	case nodes != nil && !nodes[b.self.Name]:
		reason = cmp.Or(reason, NoLocalEndpoint)
	}
	for _, s := range services {
		if e := b.in.Endpoints(s.Name); s.Local && !e.Ready[b.self.Name] && !e.Serving[b.self.Name] {
			return reason // the node carries no connection
		}
		if no := b.in.Unserved(s); no != "" {
			return cmp.Or(reason, no)
		}
	}
	for i := range b.out.Sessions {
		if no := b.announce(i, a, services, pools, ads, reason != ""); no != "" && reason == "" {
			b.leaveOut(a, services, b.out.Sessions[i].Peer, no)
		}
	}
	return reason
}

// announce adds a route to an address to a session, or returns the reason why the session has none.
func (b *bgpDecider) announce(i int, a netip.Addr, services []*Service, pools []*ipam.Pool, ads []*BGPAdvertisement, leaving bool) (reason string) {
	s := &b.out.Sessions[i].SessionConfig
	next, reason := b.nextHop(s, a)
	if reason != "" {
		return reason
	}
	done := false
	reason = NotForPeer
	for _, ad := range ads {
		if len(ad.Peers) > 0 && !slices.Contains(ad.Peers, s.Peer) {
			continue
		}
		r, problem := b.route(ad, a, services, pools)
		if problem != "" {
			reason = problem
			continue
		}
		if r.NextHop = next; !s.Internal() {
			r.LocalPref = 0 // BGP does not send LOCAL_PREF to another AS
		}
		r.Services, r.Leaving, done = names(services), leaving, true
		b.add(i, r)
	}
	if done {
		return ""
	}
	return reason
}

// nextHop returns the next hop of a route to an address, or the reason why the session cannot carry the route.
func (b *bgpDecider) nextHop(s *SessionConfig, a netip.Addr) (next netip.Addr, reason string) {
	switch {
	case !s.carries(a):
		return next, NoFamily
	case s.Interface != "": // the link-local address serves both families (RFC 8950)
		return next, ""
	case a.Is4() == s.Address.Addr().Is4():
		return next, ""
	}
	at := slices.IndexFunc(b.self.Addrs, func(n netip.Addr) bool { return n.Is4() == a.Is4() })
	if at < 0 {
		return next, NoNextHop
	}
	return b.self.Addrs[at], ""
}

// podCIDRs adds the node's podCIDRs to a session. Exclusion from load balancers does not affect pods.
func (b *bgpDecider) podCIDRs(i int) {
	s := &b.out.Sessions[i].SessionConfig
	for _, cidr := range b.in.PodCIDRs {
		next, reason := b.nextHop(s, cidr.Addr())
		if reason != "" {
			b.leaveOut(cidr.Addr(), nil, s.Peer, reason)
			continue
		}
		b.routes[i][cidr] = &Route{Prefix: cidr, NextHop: next}
	}
}

// route returns the route of an advertisement to an address, or the reason why there is none.
func (b *bgpDecider) route(ad *BGPAdvertisement, a netip.Addr, services []*Service, pools []*ipam.Pool) (r Route, reason string) {
	bits := ad.AggregationLength
	if a.Is6() {
		bits = ad.AggregationLengthV6
	}
	if !slices.ContainsFunc(pools, func(p *ipam.Pool) bool { return p.Contains(a) }) {
		bits = a.BitLen() // the address left its pool, so an aggregate of the pool does not contain it
	}
	r.LocalPref = ad.LocalPref
	var err error
	if r.Prefix, err = a.Prefix(bits); err != nil {
		return r, fmt.Sprintf("BGPAdvertisement %s: %v", ad.Name, err)
	}
	whole := ipam.RangeOf(r.Prefix)
	if bits < a.BitLen() && !slices.ContainsFunc(pools, func(p *ipam.Pool) bool {
		return slices.ContainsFunc(p.Ranges, func(r ipam.Range) bool { return r.Contains(whole.First) && r.Contains(whole.Last) })
	}) {
		return r, fmt.Sprintf("BGPAdvertisement %s: %v has addresses that are not the pool's [a longer aggregationLength]", ad.Name, r.Prefix)
	}
	if r.Communities, err = communities(ad.Communities, b.aliases); err != nil {
		return r, fmt.Sprintf("BGPAdvertisement %s: %v", ad.Name, err)
	}
	if ad.LinkBandwidth && bits == a.BitLen() {
		r.Endpoints = b.endpoints(a, services)
	}
	return r, ""
}

// endpoints returns the number of the node's endpoints for an address; 0 if all nodes serve it equally. A leaving route
// has at least one: a router that has one route without a bandwidth ignores the bandwidths of all.
func (b *bgpDecider) endpoints(a netip.Addr, services []*Service) (n int) {
	for _, s := range services {
		if !s.Local {
			return 0
		}
		n += b.in.LocalEndpoints(s.Name, a.Is4())
	}
	return max(n, 1)
}

// add merges a route into the routes of a session: with the communities of all advertisements, and the highest
// LOCAL_PREF.
func (b *bgpDecider) add(i int, r Route) {
	if old := b.routes[i][r.Prefix]; old != nil {
		r.LocalPref, r.Endpoints, r.Leaving = max(r.LocalPref, old.LocalPref), max(r.Endpoints, old.Endpoints), r.Leaving && old.Leaving
		r.Communities = append(r.Communities, old.Communities...)
		r.Services = append(r.Services, old.Services...)
	}
	slices.SortFunc(r.Communities, CommunityValue.compare)
	r.Communities = slices.Compact(r.Communities)
	slices.SortFunc(r.Services, api.Name.Compare)
	r.Services = slices.Compact(r.Services)
	b.routes[i][r.Prefix] = &r
}

func sorted(routes map[netip.Prefix]*Route) (all []Route) {
	for _, r := range routes {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(x, y Route) int {
		return cmp.Or(x.Prefix.Addr().Compare(y.Prefix.Addr()), cmp.Compare(x.Prefix.Bits(), y.Prefix.Bits()))
	})
	return all
}

func names(services []*Service) (all []api.Name) {
	for _, s := range services {
		all = append(all, s.Name)
	}
	return all
}
