package announce

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// A Service is the part of a LoadBalancer Service that decides about announcements.
type Service struct {
	api.Name
	Labels map[string]string
	// Addrs are the addresses in the status.
	Addrs []netip.Addr
	// Pool is the pool that gave the Service its addresses; empty if that is unknown.
	Pool string
	// Local is externalTrafficPolicy Local: only nodes with endpoints serve the Service.
	Local bool
	// HealthCheckNodePort is the port at which the node's proxy reports whether the kernel serves a Local Service; 0 if
	// there is none.
	HealthCheckNodePort uint16
	// Egress means that pods may leave the cluster with the addresses, so all nodes need to know the owner.
	Egress bool
}

// Endpoints are the nodes with endpoints of a Service.
type Endpoints struct {
	Any bool // some endpoint serves
	// Ready are the nodes with an endpoint that takes new connections. Serving are the nodes with an endpoint that
	// serves, even if it terminates.
	Ready, Serving map[string]bool
}

// standing reports whether an endpoint takes new connections (ready), and whether it serves open ones (serving).
func standing(p service.SliceEndpoint) (ready, serving bool) {
	return p.Ready && !p.Terminating, p.Ready || p.Serving
}

// EndpointsOf sums up EndpointSlices.
func EndpointsOf(all []*service.Slice) Endpoints {
	e := Endpoints{Ready: map[string]bool{}, Serving: map[string]bool{}}
	for _, s := range all {
		for _, p := range s.Endpoints {
			ready, serving := standing(p)
			if !serving {
				continue
			}
			if e.Any = true; p.Node == "" {
				continue
			}
			if e.Serving[p.Node] = true; ready {
				e.Ready[p.Node] = true
			}
		}
	}
	return e
}

// CountEndpoints returns the number of a node's endpoints in an IP family that take new connections. If there is none, it
// returns the number of endpoints that still serve.
func CountEndpoints(all []*service.Slice, node string, is4 bool) int {
	ready, serving := map[netip.Addr]bool{}, map[netip.Addr]bool{} // an address may be in several slices
	for _, s := range all {
		for _, p := range s.Endpoints {
			isReady, serves := standing(p)
			switch {
			case p.Node != node || p.Addr.Is4() != is4:
			case isReady:
				ready[p.Addr] = true
			case serves:
				serving[p.Addr] = true
			}
		}
	}
	return cmp.Or(len(ready), len(serving))
}

// A Node is the part of a Node object that decides about announcements.
type Node struct {
	Name   string
	Labels map[string]string
	Addrs  []netip.Addr // the InternalIPs, which the speaker has
	UID    string       // of the object
	// PodCIDRs are the prefixes of the pods' addresses. If two nodes have the same podCIDR, the one Created first has it.
	PodCIDRs []netip.Prefix
	Created  time.Time
	// Excluded is the reason why load balancers must not use the node; empty if they may.
	Excluded string
}

// Claims returns the claims of the node.
func (n *Node) Claims() api.NodeClaims {
	return api.NodeClaims{Name: n.Name, Created: n.Created, Addrs: n.Addrs, PodCIDRs: n.PodCIDRs}
}

// An Input is everything that a decision depends on.
type Input struct {
	Pools []*ipam.Pool
	L2    []*L2Advertisement
	// Routed are the BGPAdvertisements, if there are BGPPeers. Routers lead to their addresses by any node. Routed matters
	// for pods that leave the cluster, and for connections that routers move to another node.
	Routed []*BGPAdvertisement
	Nodes  []Node // sorted by name, with the addresses that count
	// Accepted are the podCIDRs of the Nodes that count. Nil: Nodes alone decide.
	Accepted *api.AcceptedNodes
	// Routers are the addresses of the BGPPeers.
	Routers   []netip.Addr
	Services  []*Service
	Endpoints func(api.Name) Endpoints
}

// A Decision has the nodes that may announce an address by ARP or NDP. It is immutable.
type Decision struct {
	Addr     netip.Addr
	Services []api.Name // with the address
	// Reason is set if there is no candidate.
	Reason string
	// Checks are the health check node ports that must report success on a node before it announces the address.
	Checks []uint16
	// Egress means that pods may leave the cluster with the address. Routed means that they cannot: routers have a route
	// to it as well, so answers would come to any node.
	Egress, Routed bool
	// Carriers are the nodes that may have connections to the address from routers. Nodes that must not get new ones come
	// first.
	Carriers []string

	candidates *candidates // nil: none
	best       [maxBest]uint16
}

// The reasons of an address without candidate.
const (
	NoPool          = "no IPAddressPool has the address"
	NoAdvertisement = "no L2Advertisement is for its pool and Service"
	NoNode          = "no node matches the L2Advertisement's nodeSelectors and may be used by load balancers"
	NoEndpoints     = "its Service has no endpoints that serve"
	NoLocal         = "no node that may announce it has an endpoint (externalTrafficPolicy: Local)"
	// NotThisNodeL2 is the reason of a node that is no candidate. The other reasons of nodes are BGP's.
	NotThisNodeL2 = "no L2Advertisement's nodeSelectors match this node"
)

// Decide decides about every address of every Service. All nodes with equal objects have equal results. The result depends
// on the address, not on the Service, so an address that Services share is on one node.
func Decide(in Input) map[netip.Addr]*Decision { return new(Decider).Decide(in) }

// A Decider decides repeatedly, and reuses the parts of the last result that did not change. The zero value is ready.
type Decider struct {
	last map[netip.Addr]*Decision
	sets map[string]*candidates // by the key of the advertisements
}

// shared has the values that several addresses share in one decision, by the key of their advertisements.
type shared struct {
	candidates map[string]*candidates
	announcers map[string][]string
}

// Decide is like the function Decide. Earlier results do not change.
func (r *Decider) Decide(in Input) map[netip.Addr]*Decision {
	sharing := in.sharing()
	all := make(map[netip.Addr]*Decision, len(sharing))
	sets := shared{map[string]*candidates{}, map[string][]string{}}
	for a, services := range sharing {
		all[a] = r.decide(in, a, services, sets)
	}
	r.last, r.sets = all, sets.candidates
	return all
}

// sharing returns the Services of each address, sorted by name.
func (in Input) sharing() map[netip.Addr][]*Service {
	sharing := map[netip.Addr][]*Service{}
	for _, s := range in.Services {
		for _, a := range s.Addrs {
			sharing[a] = append(sharing[a], s)
		}
	}
	for _, services := range sharing {
		slices.SortFunc(services, func(x, y *Service) int { return x.Compare(y.Name) })
	}
	return sharing
}

// decide returns the decision about an address. It returns the last one if that is equal.
func (r *Decider) decide(in Input, a netip.Addr, services []*Service, sets shared) *Decision {
	last := r.last[a]
	d := Decision{Addr: a}
	pools := in.poolsOf(a, services)
	d.candidates, d.Reason = r.choose(in, pools, services, sets.candidates, last)
	d.Carriers = in.carriers(pools, services, sets.announcers)
	d.Routed = in.routed(pools, services)
	if last != nil && d.candidates == last.candidates && d.Reason == last.Reason && d.Routed == last.Routed && slices.Equal(d.Carriers, last.Carriers) && last.isFor(services) {
		return last
	}
	for _, s := range services {
		d.Services = append(d.Services, s.Name)
		d.Egress = d.Egress || s.Egress
		if s.checked() {
			d.Checks = append(d.Checks, s.HealthCheckNodePort)
		}
	}
	if last != nil && d.candidates == last.candidates {
		d.best = last.best
	} else if d.candidates != nil {
		d.best = d.candidates.rank(a)
	}
	return &d
}

// checked reports whether the speaker asks the node's proxy about the Service before it announces.
func (s *Service) checked() bool { return s.Local && s.HealthCheckNodePort != 0 }

// isFor reports whether a decision has the names, checks and egress of these Services.
func (d *Decision) isFor(services []*Service) bool {
	checks, egress := d.Checks, false
	for i, s := range services {
		egress = egress || s.Egress
		if i == len(d.Services) || d.Services[i] != s.Name {
			return false
		}
		if s.checked() {
			if len(checks) == 0 || checks[0] != s.HealthCheckNodePort {
				return false
			}
			checks = checks[1:]
		}
	}
	return len(services) == len(d.Services) && len(checks) == 0 && egress == d.Egress
}

// choose returns the candidates for an address of these pools, or the reason why there are none.
func (r *Decider) choose(in Input, pools []*ipam.Pool, services []*Service, sets map[string]*candidates, last *Decision) (*candidates, string) {
	if len(pools) == 0 {
		return nil, NoPool
	}
	ads, key := in.advertisements(pools, services)
	if len(ads) == 0 {
		return nil, NoAdvertisement
	}
	nodes, reason := in.serving(services)
	if reason != "" {
		return nil, reason
	}
	all, known := sets[key]
	if !known {
		all = in.candidates(ads).reuse(r.sets[key])
		sets[key] = all
	}
	switch {
	case len(all.all) == 0:
		return nil, NoNode
	case nodes == nil:
		return all, ""
	}
	local := all.only(nodes)
	if len(local.all) == 0 {
		return nil, NoLocal
	}
	if last != nil {
		local = local.reuse(last.candidates)
	}
	return local, ""
}

// advertisements returns the advertisements for an address of these pools and one of these Services, with a key that is
// equal for the same advertisements.
func (in Input) advertisements(pools []*ipam.Pool, services []*Service) (all []*L2Advertisement, key string) {
	var which []byte
	for i, ad := range in.L2 {
		if len(ad.Problems) == 0 && isFor(ad.IPAddressPools, ad.IPAddressPoolSelectors, ad.ServiceSelectors, pools, services) {
			all, which = append(all, ad), binary.AppendUvarint(which, uint64(i))
		}
	}
	return all, string(which)
}

// routed reports whether routers get a route to an egress address.
func (in Input) routed(pools []*ipam.Pool, services []*Service) bool {
	if !slices.ContainsFunc(services, func(s *Service) bool { return s.Egress }) {
		return false
	}
	return slices.ContainsFunc(in.Routed, func(ad *BGPAdvertisement) bool { return ad.isFor(pools, services) })
}

// isFor reports whether an advertisement is for an address of these pools and one of these Services.
func (ad *BGPAdvertisement) isFor(pools []*ipam.Pool, services []*Service) bool {
	return len(ad.Problems) == 0 && isFor(ad.IPAddressPools, ad.IPAddressPoolSelectors, ad.ServiceSelectors, pools, services)
}

// poolsOf returns the pools with an address. An address that no pool has any more belongs to the pool that gave it to the
// Service, even if that pool is gone: nobody loses traffic because an administrator changes a pool.
func (in Input) poolsOf(a netip.Addr, services []*Service) (pools []*ipam.Pool) {
	for _, p := range in.Pools {
		if p.Contains(a) {
			pools = append(pools, p)
		}
	}
	if len(pools) > 0 {
		return pools
	}
	for _, s := range services {
		switch at := slices.IndexFunc(in.Pools, func(p *ipam.Pool) bool { return p.Name == s.Pool }); {
		case s.Pool == "":
		case at >= 0:
			pools = append(pools, in.Pools[at])
		default:
			pools = append(pools, &ipam.Pool{Name: s.Pool})
		}
	}
	return pools
}

// isFor reports whether an advertisement is for one of the pools and one of the Services. names and ofPools choose pools,
// ofServices chooses Services. Without names and selectors of a kind, the advertisement is for all.
func isFor(names []string, ofPools, ofServices []api.Selector, pools []*ipam.Pool, services []*Service) bool {
	return slices.ContainsFunc(pools, func(p *ipam.Pool) bool {
		return len(names)+len(ofPools) == 0 || slices.Contains(names, p.Name) || api.AnyMatches(ofPools, p.Labels)
	}) && (len(ofServices) == 0 || slices.ContainsFunc(services, func(s *Service) bool { return api.AnyMatches(ofServices, s.Labels) }))
}

// serving returns the nodes that can serve all of the Services; nil if every node can.
func (in Input) serving(services []*Service) (nodes map[string]bool, reason string) {
	some := false
	for _, s := range services {
		e := in.Endpoints(s.Name)
		some = some || e.Any
		if !s.Local {
			continue
		}
		local := e.Ready
		if len(local) == 0 {
			local = e.Serving
		}
		if nodes == nil {
			nodes = maps.Clone(local)
		} else {
			maps.DeleteFunc(nodes, func(n string, _ bool) bool { return !local[n] })
		}
	}
	if !some {
		return nil, NoEndpoints
	}
	return nodes, ""
}
