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

// A Service is what announcing needs to know of a Service of type LoadBalancer.
type Service struct {
	api.Name
	Labels map[string]string
	// Addrs are the addresses that it has, as its status says.
	Addrs []netip.Addr
	// Local is externalTrafficPolicy Local: only nodes with endpoints serve it.
	Local bool
	// HealthCheckNodePort is where the node's proxy says, of a Local Service, whether the
	// kernel serves it; 0: nowhere.
	HealthCheckNodePort uint16
	// Egress: pods may leave the cluster with its addresses, so that all nodes ask who announces them.
	Egress bool
}

// Endpoints say where a Service's endpoints are.
type Endpoints struct {
	Any bool // there is one that serves, anywhere
	// Ready are the nodes with an endpoint that takes new connections; Serving those with one
	// that still serves, also if it terminates.
	Ready, Serving map[string]bool
}

// standing says what an endpoint is good for: new connections, or at least those that are open.
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

// CountEndpoints returns how many endpoints of an address family a node has: those that take new
// connections, or if it has none, those that still serve.
func CountEndpoints(all []*service.Slice, node string, is4 bool) int {
	ready, serving := map[netip.Addr]bool{}, map[netip.Addr]bool{} // one may be in several slices
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

// A Node is what announcing needs to know of a node.
type Node struct {
	Name   string
	Labels map[string]string
	Addrs  []netip.Addr // its InternalIPs: where its speaker is
	UID    string       // of its object
	// PodCIDRs are where its pods' addresses come from, and Created when its object was made: of two nodes the older one
	// has a podCIDR that both have.
	PodCIDRs []netip.Prefix
	Created  time.Time
	// Excluded says why load balancers must not use the node; empty: they may.
	Excluded string
}

// An Input is all that a decision depends on.
type Input struct {
	Pools []*ipam.Pool
	L2    []*L2Advertisement
	// Routed are the BGPAdvertisements, if there are BGPPeers: routers lead to their addresses by any node. They
	// count for pods that leave the cluster, and for connections that routers lead to another node than before.
	Routed    []*BGPAdvertisement
	Nodes     []Node // sorted by name
	Services  []*Service
	Endpoints func(api.Name) Endpoints
}

// A Decision is who may announce an address by ARP or NDP. It does not change.
type Decision struct {
	Addr     netip.Addr
	Services []api.Name // that have the address
	// Reason says why there is no candidate.
	Reason string
	// Checks are the health check node ports that must say yes on the node before it
	// announces the address.
	Checks []uint16
	// Egress: pods may leave the cluster with it. Routed: they cannot, because routers are told of it too, and
	// answers would come to any node.
	Egress, Routed bool
	// Carriers are the nodes that may have connections to the address by way of routers; first those that are not to have new ones.
	Carriers []string

	candidates *candidates // nil: none
	best       [kept]uint16
}

// Reasons why nobody announces an address.
const (
	NoPool          = "no IPAddressPool has the address"
	NoAdvertisement = "no L2Advertisement is for its pool and Service"
	NoNode          = "no node matches the L2Advertisement's nodeSelectors and may be used by load balancers"
	NoEndpoints     = "its Service has no endpoints that serve"
	NoLocal         = "no node that may announce it has an endpoint (externalTrafficPolicy: Local)"
	// NotThisNodeL2 is why a node is no candidate; the others are as of BGP.
	NotThisNodeL2 = "no L2Advertisement's nodeSelectors match this node"
)

// Decide decides about every address of every Service. All nodes that see the same objects
// decide the same, in whatever order they saw them: by address, not by Service, so that an
// address which Services share is on one node.
func Decide(in Input) map[netip.Addr]*Decision { return new(Decider).Decide(in) }

// A Decider decides again and again, at the cost of what has changed. The zero value has not decided yet.
type Decider struct {
	last map[netip.Addr]*Decision
	sets map[string]*candidates // by the advertisements that are for them
}

// shared is what several addresses have, by the advertisements that are for them, in one decision.
type shared struct {
	candidates map[string]*candidates
	announcers map[string][]string
}

// Decide is the function of that name. What it returned before stays as it was.
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

// sharing returns the Services that have an address, sorted by name.
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

// decide returns the decision about an address: the one of before, if it is the same.
func (r *Decider) decide(in Input, a netip.Addr, services []*Service, sets shared) *Decision {
	last := r.last[a]
	d := Decision{Addr: a}
	pools := poolsOf(in.Pools, a)
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

// checked reports whether the node's proxy is asked whether it serves the Service.
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

// choose returns the candidates for an address of these pools, or why there are none.
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
		all = in.candidates(ads).or(r.sets[key])
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
		local = local.or(last.candidates)
	}
	return local, ""
}

// advertisements returns those that are for an address of these pools, of one of these
// Services, and a key of which they are.
func (in Input) advertisements(pools []*ipam.Pool, services []*Service) (all []*L2Advertisement, key string) {
	var which []byte
	for i, ad := range in.L2 {
		if len(ad.Problems) == 0 && isFor(ad.IPAddressPools, ad.IPAddressPoolSelectors, ad.ServiceSelectors, pools, services) {
			all, which = append(all, ad), binary.AppendUvarint(which, uint64(i))
		}
	}
	return all, string(which)
}

// routed reports whether routers are told of an address with which pods may leave the cluster.
func (in Input) routed(pools []*ipam.Pool, services []*Service) bool {
	if !slices.ContainsFunc(services, func(s *Service) bool { return s.Egress }) {
		return false
	}
	return slices.ContainsFunc(in.Routed, func(ad *BGPAdvertisement) bool { return ad.isFor(pools, services) })
}

// isFor reports whether an advertisement is for an address of these pools, of one of these Services.
func (ad *BGPAdvertisement) isFor(pools []*ipam.Pool, services []*Service) bool {
	return len(ad.Problems) == 0 && isFor(ad.IPAddressPools, ad.IPAddressPoolSelectors, ad.ServiceSelectors, pools, services)
}

// poolsOf returns the pools that an address is of.
func poolsOf(all []*ipam.Pool, a netip.Addr) (pools []*ipam.Pool) {
	for _, p := range all {
		if p.Contains(a) {
			pools = append(pools, p)
		}
	}
	return pools
}

// isFor reports whether an advertisement with these names and selectors of pools, and these of Services, is for one of the
// pools and one of the Services. Without any of a kind it is for all.
func isFor(names []string, ofPools, ofServices []api.Selector, pools []*ipam.Pool, services []*Service) bool {
	return slices.ContainsFunc(pools, func(p *ipam.Pool) bool {
		return len(names)+len(ofPools) == 0 || slices.Contains(names, p.Name) || api.AnyMatches(ofPools, p.Labels)
	}) && (len(ofServices) == 0 || slices.ContainsFunc(services, func(s *Service) bool { return api.AnyMatches(ofServices, s.Labels) }))
}

// serving returns the nodes that can serve all of the Services; nil: every node can.
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
