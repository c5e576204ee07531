package service

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Entry is the result of Compile: all that one Service needs from a node. It is immutable.
type Entry struct {
	Name      api.Name
	Created   int64
	Frontends []*Frontend      // sorted by key, without duplicates
	Problems  []api.Problem    // the parts that were left out, with the reasons
	Health    *HealthCheck     // for load balancers; nil: no check
	slices    []*Slice         // the input of Compile; nil: the entry was not compiled
	external  bool             // the Service claims addresses for clients outside the cluster, also refused ones
	balancers AddrSet          // load balancers' addresses
	loops     *loops           // nil: no endpoint can be a frontend
	refused   map[Key]struct{} // endpoints that were left out because they are frontends
}

// A HealthCheck is the answer of a node to load balancers about one Service.
type HealthCheck struct {
	Service api.Name
	Port    uint16 // healthCheckNodePort; 0: there is no check
	// Endpoints4 and Endpoints6 count the IPv4 and IPv6 addresses of ready endpoints on the node; 0 for a family that
	// the Service does not have. Terminating endpoints do not count, although they may still get traffic. Load
	// balancers thus leave the node while its last pod still answers.
	Endpoints4, Endpoints6 int
}

// Compile returns the Entry of svc on the node of facts. The endpoints of svc are in eps. Compile never fails: parts that
// make no sense are left out and reported in Entry.Problems.
func Compile(svc *Service, eps []*Slice, facts Facts) *Entry { return compile(svc, eps, facts, nil) }

// compile is Compile without the refused endpoints, which are frontends.
func compile(svc *Service, eps []*Slice, facts Facts, refused map[Key]struct{}) *Entry {
	c := compilation{svc: svc, facts: facts, refused: refused, entry: &Entry{Name: svc.Name, Created: svc.Created, slices: eps}}
	c.entry.Problems = problemsOf(svc, eps)
	if len(svc.ClusterIPs) == 0 {
		return c.entry
	}
	if svc.Egress != nil && facts.EgressOff {
		c.problem("EgressUnavailable", "annotation fairway.net/egress has no effect: the agents run without --egress-addresses, and its pods leave the cluster with their nodes' addresses [component egress]")
	}
	if svc.Weighted && !facts.Outside && unweighed(eps) {
		c.problem(ReasonWeightsUnavailable, "annotation fairway.net/weights has no effect: no EndpointSlice has weights, so all pods get equal shares [does fairway controller run (component controller), and has a pod the annotation fairway.net/weight?]")
	}
	c.entry.external = len(svc.BalancerIPs)+len(svc.ExternalIPs) > 0
	c.externalAddresses()
	c.balance = c.algorithm()
	c.entry.balancers = NewAddrSet(slices.Concat(c.balancers[true], c.balancers[false])...)
	ports := c.admit()
	c.lists = c.countLists(ports)
	c.sourceRanges(len(ports))
	for i, from := range runsOf(ports, c.limitEndpoints(eps, len(ports))) {
		for _, ip := range c.families() {
			c.port(ports[i], ip, c.collect(ports[i], from, ip.Is4(), nil))
		}
		if c.full {
			c.problem("TooManyFrontends", "the Service has more than %d frontends (ports times addresses); those behind port %d/%v are left out %s",
				facts.Limits.Frontends, ports[i].Port, ports[i].Proto, limitAdvice)
			break
		}
	}
	if svc.HealthCheckNodePort != 0 && svc.ExternalLocal && !facts.Outside {
		h := &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, ip := range c.families() {
			if n := localReady(eps, facts.Name, ip.Is4()); ip.Is4() {
				h.Endpoints4 = n
			} else {
				h.Endpoints6 = n
			}
		}
		c.entry.Health = h
	}
	c.loops(eps)
	slices.SortFunc(c.entry.Frontends, func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
	return c.entry
}

// ReasonWeightsUnavailable is the reason of a problem that is normal for a moment: the controller writes the weights of
// new pods a little later than their EndpointSlices are there.
const ReasonWeightsUnavailable = "WeightsUnavailable"

// unweighed reports whether there are endpoints, and none has a weight.
func unweighed(eps []*Slice) bool {
	some := false
	for _, s := range eps {
		for i := range s.Endpoints {
			if some = true; s.Endpoints[i].HasWeight {
				return false
			}
		}
	}
	return some
}

// algorithm returns the Service's algorithm, or the node's default if the Service names none that this node has.
func (c *compilation) algorithm() Algorithm {
	if !c.svc.Balanced {
		return c.facts.Balance
	}
	if c.facts.Unsupported.Has(c.svc.Balance) {
		c.problem("BalanceNotSupported", "this node's proxy mode cannot balance by %v; it balances by %v", c.svc.Balance, c.facts.Balance)
		return c.facts.Balance
	}
	return c.svc.Balance
}

// A compilation is one run of Compile.
type compilation struct {
	svc   *Service
	facts Facts
	entry *Entry
	// refused are endpoints that are frontends. suspects are endpoints that may be frontends. See loops.
	refused  map[Key]struct{}
	suspects []Key
	full     bool // the Service has reached the limit of frontends
	lists    int  // number of lists of endpoints in a family
	slots    int  // limit of slots for each list; 0: no limit
	balance  Algorithm
	// balancers and externals are the addresses for clients outside the cluster. The key true stands for IPv4.
	balancers, externals map[bool][]netip.Addr
	onHosts              map[netip.Addr]bool // the balancers that are nodes' own addresses
	// sources are the clients that may use a load balancer's address; empty: all clients.
	sources map[netip.Addr][]netip.Prefix
}

func (c *compilation) problem(reason, format string, args ...any) {
	c.entry.Problems = api.AddProblem(c.entry.Problems, reason, format, args...)
}

// families returns the usable ClusterIPs, the first of each family.
func (c *compilation) families() []netip.Addr {
	var ips []netip.Addr
	for _, ip := range c.svc.ClusterIPs {
		ip = ip.Unmap()
		if !usable(ip) {
			continue // internal/kube reports it, because it knows the text
		}
		if !slices.ContainsFunc(ips, func(o netip.Addr) bool { return o.Is4() == ip.Is4() }) {
			ips = append(ips, ip)
		}
	}
	return ips
}

// usable reports whether clients can use a as the address of a Service.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

// port adds the frontends of one port in the family of ip.
func (c *compilation) port(p Port, ip netip.Addr, all []candidate) {
	set := categorize(all, p, c.svc, c.facts, c.slots)
	name := api.PortName{Name: c.svc.Name, Port: p.Name}
	var retained []netip.AddrPort
	add := func(addr netip.Addr, port uint16, internal, external *Route) *Frontend {
		if limit := c.facts.Limits.Frontends; limit > 0 && len(c.entry.Frontends) >= limit {
			c.full = true
			return &Frontend{}
		}
		f := &Frontend{
			Addr: netip.AddrPortFrom(addr, port), Proto: p.Proto, Service: name, Internal: internal, External: external,
			Balance: c.balance, Affinity: c.svc.Affinity, Ejection: c.ejection(p), Retained: retained, Termination: c.svc.Termination,
		}
		c.entry.Frontends = append(c.entry.Frontends, f)
		return f
	}

	if !c.facts.Outside {
		in := c.internal(set, ip.Is4())
		retained = set.retained(in, in)
		add(ip, p.Port, in, in).ClusterIP = true
	}
	internal, external := c.external(set)
	retained = set.retained(internal, external)
	if p.NodePort != 0 && !c.facts.Outside {
		any := netip.IPv6Unspecified()
		if ip.Is4() {
			any = netip.IPv4Unspecified()
		}
		add(any, p.NodePort, internal, external)
	}
	for _, a := range c.balancers[ip.Is4()] {
		if c.checkedPort(a, p) {
			f := add(a, p.Port, internal, external)
			f.LoadBalancer, f.OnNode, f.Sources = true, c.onHosts[a], c.sources[a]
		}
	}
	for _, a := range c.externals[ip.Is4()] {
		add(a, p.Port, internal, external)
	}
}

// internal returns the route of the ClusterIP. Clients outside the cluster are masqueraded: without that, their replies
// would not return through this node.
func (c *compilation) internal(set choice, is4 bool) *Route {
	masq := MasqueradeHairpin
	detect4, detect6 := c.facts.Settings.Detect()
	switch {
	case c.facts.MasqueradeAll:
		masq = MasqueradeAll
	case is4 && detect4, !is4 && detect6:
		masq = MasqueradeOffCluster
	}
	if c.svc.InternalLocal {
		return set.route(set.local, set.spareLocal, masq).local()
	}
	return set.route(set.cluster, set.spareCluster, masq)
}

// external returns the routes of addresses for clients outside the cluster.
//
// externalTrafficPolicy: Local keeps the client's address, so packets may go only to pods on this node. Pods and the
// node itself are internal clients: they use the endpoints of the whole cluster, and the node is masqueraded.
func (c *compilation) external(set choice) (internal, external *Route) {
	if c.facts.Outside {
		return c.outside(set)
	}
	if !c.svc.ExternalLocal {
		r := set.route(set.cluster, set.spareCluster, MasqueradeAll)
		return r, r
	}
	return set.route(set.cluster, set.spareCluster, MasqueradeOffCluster), set.route(set.local, set.spareLocal, MasqueradeHairpin).local()
}
