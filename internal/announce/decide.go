package announce

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/ipam"
	"github.com/fairway-net/fairway/internal/labels"
	"github.com/fairway-net/fairway/internal/service"
)

// A Service is what announcing needs to know of a Service of type LoadBalancer.
type Service struct {
	service.Name
	Labels map[string]string
	// Addrs are the addresses that it has, as its status says.
	Addrs []netip.Addr
	// Local is externalTrafficPolicy Local: only nodes with endpoints serve it.
	Local bool
	// HealthCheckNodePort is where the node's proxy says, of a Local Service, whether the
	// kernel serves it; 0: nowhere.
	HealthCheckNodePort uint16
}

// Endpoints say where a Service's endpoints are.
type Endpoints struct {
	Any bool // there is one that serves, anywhere
	// Ready are the nodes with an endpoint that takes new connections; Serving those with one
	// that still serves, also if it terminates.
	Ready, Serving map[string]bool
}

// EndpointsOf sums up EndpointSlices.
func EndpointsOf(all []*service.Slice) Endpoints {
	e := Endpoints{Ready: map[string]bool{}, Serving: map[string]bool{}}
	for _, s := range all {
		for _, p := range s.Endpoints {
			if !p.Ready && !p.Serving {
				continue
			}
			if e.Any = true; p.Node == "" {
				continue
			}
			if e.Serving[p.Node] = true; p.Ready && !p.Terminating {
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
			switch {
			case p.Node != node || p.Addr.Is4() != is4:
			case p.Ready && !p.Terminating:
				ready[p.Addr] = true
			case p.Ready || p.Serving:
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
	// Excluded says why load balancers must not use the node; empty: they may.
	Excluded string
}

// An Input is all that a decision depends on.
type Input struct {
	Pools     []*ipam.Pool
	L2        []*L2Advertisement
	Nodes     []Node // sorted by name
	Services  []*Service
	Endpoints func(service.Name) Endpoints
}

// A Decision is who may announce an address by ARP or NDP.
type Decision struct {
	Addr     netip.Addr
	Services []service.Name // that have the address
	// Candidates are the nodes that may, the best first.
	Candidates []Candidate
	// Reason says why there is no candidate.
	Reason string
	// Checks are the health check node ports that must say yes on the node before it
	// announces the address.
	Checks []uint16
}

// A Candidate is a node that may announce an address.
type Candidate struct {
	Node       string
	Score      int      // by preferredNodeSelectors
	Interfaces []string // only there; empty: on all
	hash       [sha256.Size]byte
}

// Owner returns the best candidate that is not out.
func (d *Decision) Owner(out map[string]bool) (Candidate, bool) {
	for _, c := range d.Candidates {
		if !out[c.Node] {
			return c, true
		}
	}
	return Candidate{}, false
}

// Candidate returns the candidate of that name.
func (d *Decision) Candidate(node string) (Candidate, bool) {
	i := slices.IndexFunc(d.Candidates, func(c Candidate) bool { return c.Node == node })
	if i < 0 {
		return Candidate{}, false
	}
	return d.Candidates[i], true
}

// Reasons why nobody announces an address.
const (
	NoPool          = "no IPAddressPool has the address"
	NoAdvertisement = "no L2Advertisement is for its pool and Service"
	NoNode          = "no node matches the L2Advertisement's nodeSelectors and may be used by load balancers"
	NoEndpoints     = "its Service has no endpoints that serve"
	NoLocal         = "no node that may announce it has an endpoint (externalTrafficPolicy: Local)"
)

// Decide decides about every address of every Service. All nodes that see the same objects
// decide the same, in whatever order they saw them: by address, not by Service, so that an
// address which Services share is on one node.
func Decide(in Input) map[netip.Addr]*Decision {
	sharing := in.sharing()
	all := make(map[netip.Addr]*Decision, len(sharing))
	for a, services := range sharing {
		all[a] = in.decide(a, services)
	}
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

func (in Input) decide(a netip.Addr, services []*Service) *Decision {
	d := &Decision{Addr: a}
	for _, s := range services {
		d.Services = append(d.Services, s.Name)
		if s.Local && s.HealthCheckNodePort != 0 {
			d.Checks = append(d.Checks, s.HealthCheckNodePort)
		}
	}
	pools := poolsOf(in.Pools, a)
	if len(pools) == 0 {
		d.Reason = NoPool
		return d
	}
	ads := in.advertisements(pools, services)
	if len(ads) == 0 {
		d.Reason = NoAdvertisement
		return d
	}
	nodes, reason := in.serving(services)
	if d.Reason = reason; reason != "" {
		return d
	}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if c, ok := candidate(n, ads); ok && n.Excluded == "" {
			d.Candidates = append(d.Candidates, c)
		}
	}
	if len(d.Candidates) == 0 {
		d.Reason = NoNode
	} else if nodes != nil {
		d.Candidates = slices.DeleteFunc(d.Candidates, func(c Candidate) bool { return !nodes[c.Node] })
		if len(d.Candidates) == 0 {
			d.Reason = NoLocal
		}
	}
	rank(a, d.Candidates)
	return d
}

// rank sorts the best first: by score, then by the hash of node and address, so that a node
// that comes or goes moves only the addresses that it gets or had.
func rank(a netip.Addr, all []Candidate) {
	text := "#" + a.String()
	for i := range all {
		all[i].hash = sha256.Sum256([]byte(all[i].Node + text))
	}
	slices.SortFunc(all, func(x, y Candidate) int {
		return cmp.Or(cmp.Compare(y.Score, x.Score), bytes.Compare(x.hash[:], y.hash[:]))
	})
}

// advertisements returns those that are for an address of these pools, of one of these
// Services.
func (in Input) advertisements(pools []*ipam.Pool, services []*Service) (all []*L2Advertisement) {
	for _, ad := range in.L2 {
		if forPools(ad.IPAddressPools, ad.IPAddressPoolSelectors, pools) && forServices(ad.ServiceSelectors, services) && len(ad.Problems) == 0 {
			all = append(all, ad)
		}
	}
	return all
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

// forPools reports whether an advertisement with these names and selectors is for one of the
// pools. Without both it is for all.
func forPools(names []string, selectors []labels.Selector, pools []*ipam.Pool) bool {
	return slices.ContainsFunc(pools, func(p *ipam.Pool) bool {
		return len(names)+len(selectors) == 0 || slices.Contains(names, p.Name) || labels.AnyMatches(selectors, p.Labels)
	})
}

// forServices reports whether an advertisement with these selectors is for one of the Services.
func forServices(selectors []labels.Selector, services []*Service) bool {
	return len(selectors) == 0 || slices.ContainsFunc(services, func(s *Service) bool { return labels.AnyMatches(selectors, s.Labels) })
}

// candidate is a node as the advertisements see it: they add up.
func candidate(n *Node, ads []*L2Advertisement) (c Candidate, ok bool) {
	c.Node = n.Name
	interfaces, everywhere := map[string]bool{}, false
	for _, ad := range ads {
		if len(ad.NodeSelectors) > 0 && !labels.AnyMatches(ad.NodeSelectors, n.Labels) {
			continue
		}
		ok = true
		everywhere = everywhere || len(ad.Interfaces) == 0
		for _, name := range ad.Interfaces {
			interfaces[name] = true
		}
		for _, p := range ad.PreferredNodeSelectors {
			if p.Preference.Matches(n.Labels) {
				c.Score += p.Weight
			}
		}
	}
	if !everywhere {
		c.Interfaces = slices.Sorted(maps.Keys(interfaces))
	}
	return c, ok
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
