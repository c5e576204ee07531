package service

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Entry is everything one Service asks of a node: the result of Compile. It is
// immutable.
type Entry struct {
	Name      api.Name
	Created   int64
	Frontends []*Frontend      // sorted by key, without duplicates
	Problems  []api.Problem    // what was left out, and why
	Health    *HealthCheck     // what load balancers may ask; nil: nothing
	slices    []*Slice         // that it was compiled from; nil if it was not
	external  bool             // it asks for addresses for clients outside the cluster, whether it got them or not
	balancers AddrSet          // load balancers' addresses
	loops     *loops           // nil: none of its endpoints can be a frontend
	refused   map[Key]struct{} // endpoints that were left out because they are frontends
}

// DependsOnAddresses reports whether Compile may return something else with other NodeAddrs
// or APIServers.
func (e *Entry) DependsOnAddresses() bool { return e.external || e.loops != nil }

// HasEndpointsOn reports whether one of the Service's endpoints is on one of the nodes.
func (e *Entry) HasEndpointsOn(nodes []string) bool {
	return slices.ContainsFunc(e.slices, func(s *Slice) bool {
		return slices.ContainsFunc(s.Endpoints, func(p SliceEndpoint) bool { return slices.Contains(nodes, p.Node) })
	})
}

// A HealthCheck is what a load balancer may ask a node about one Service.
type HealthCheck struct {
	Service api.Name
	Port    uint16 // healthCheckNodePort; 0: there is no check
	// Endpoints4 and Endpoints6 are the numbers of IPv4 and IPv6 addresses of ready
	// endpoints on the node; 0 for a family that the Service does not have. Terminating
	// ones do not count, although traffic may still be sent to them: so load balancers
	// leave the node while its last pod still answers.
	Endpoints4, Endpoints6 int
}

// Compile decides what node does for svc, whose endpoints are in eps.
// It never fails: what makes no sense is left out and reported in Entry.Problems.
func Compile(svc *Service, eps []*Slice, node Node) *Entry { return compile(svc, eps, node, nil) }

// compile is Compile without the endpoints that are frontends.
func compile(svc *Service, eps []*Slice, node Node, refused map[Key]struct{}) *Entry {
	c := compilation{svc: svc, node: node, refused: refused, entry: &Entry{Name: svc.Name, Created: svc.Created, slices: eps}}
	c.entry.Problems = problemsOf(svc, eps)
	if len(svc.ClusterIPs) == 0 {
		return c.entry
	}
	if svc.Egress != nil && node.EgressOff {
		c.problem("EgressUnavailable", "annotation fairway.net/egress has no effect: the agents run without --egress-addresses, and its pods leave the cluster with their nodes' addresses [component egress]")
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
				node.Limits.Frontends, ports[i].Port, ports[i].Proto, limitAdvice)
			break
		}
	}
	if svc.HealthCheckNodePort != 0 && svc.ExternalLocal && !node.Outside {
		h := &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, ip := range c.families() {
			if n := localReady(eps, node.Name, ip.Is4()); ip.Is4() {
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

// algorithm returns how connections are spread: as the Service asks, else as the node
// does by default.
func (c *compilation) algorithm() Algorithm {
	if !c.svc.Balanced {
		return c.node.Balance
	}
	if c.node.Unsupported.Has(c.svc.Balance) {
		c.problem("BalanceNotSupported", "this node's proxy mode cannot balance by %v; it balances by %v", c.svc.Balance, c.node.Balance)
		return c.node.Balance
	}
	return c.svc.Balance
}

// compilation is one run of Compile.
type compilation struct {
	svc   *Service
	node  Node
	entry *Entry
	// refused are endpoints that are frontends; suspects those that may be. See loops.
	refused  map[Key]struct{}
	suspects []Key
	full     bool // there are as many frontends as there may be
	lists    int  // of endpoints, in a family
	slots    int  // how many each of them may have; 0: any number
	// balance is how all frontends spread connections.
	balance Algorithm
	// balancers and externals are the addresses for clients outside the cluster; true: IPv4.
	balancers, externals map[bool][]netip.Addr
	onHosts              map[netip.Addr]bool // of balancers: nodes' own
	// sources are the clients that may use a load balancer's address; none: all clients.
	sources map[netip.Addr][]netip.Prefix
}

func (c *compilation) problem(reason, format string, args ...any) {
	c.entry.Problems = api.AddProblem(c.entry.Problems, reason, format, args...)
}

// families returns the ClusterIPs that can be served, the first of each family.
func (c *compilation) families() []netip.Addr {
	var ips []netip.Addr
	for _, ip := range c.svc.ClusterIPs {
		ip = ip.Unmap()
		if !usable(ip) {
			continue // named by internal/kube, which knows the text
		}
		if !slices.ContainsFunc(ips, func(o netip.Addr) bool { return o.Is4() == ip.Is4() }) {
			ips = append(ips, ip)
		}
	}
	return ips
}

// usable reports whether clients can use a as a Service's address.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

// port adds the frontends that one port has in the family of ip.
func (c *compilation) port(p Port, ip netip.Addr, all []candidate) {
	set := categorize(all, p, c.svc, c.node, c.slots)
	name := api.PortName{Name: c.svc.Name, Port: p.Name}
	var retained []netip.AddrPort
	add := func(addr netip.Addr, port uint16, internal, external *Route) *Frontend {
		if limit := c.node.Limits.Frontends; limit > 0 && len(c.entry.Frontends) >= limit {
			c.full = true
			return &Frontend{}
		}
		f := &Frontend{
			Addr: netip.AddrPortFrom(addr, port), Proto: p.Proto, Service: name, Internal: internal, External: external,
			Balance: c.balance, Affinity: c.svc.Affinity, Retained: retained, Termination: c.svc.Termination,
		}
		c.entry.Frontends = append(c.entry.Frontends, f)
		return f
	}

	if !c.node.Outside {
		in := c.internal(set, ip.Is4())
		retained = set.retained(in, in)
		add(ip, p.Port, in, in).ClusterIP = true
	}
	internal, external := c.external(set)
	retained = set.retained(internal, external)
	if p.NodePort != 0 && !c.node.Outside {
		any := netip.IPv6Unspecified()
		if ip.Is4() {
			any = netip.IPv4Unspecified()
		}
		add(any, p.NodePort, internal, external)
	}
	for _, a := range c.balancers[ip.Is4()] {
		if c.checkedPort(a, p) {
			f := add(a, p.Port, internal, external)
			f.LoadBalancer, f.Sources = true, c.sources[a]
		}
	}
	for _, a := range c.externals[ip.Is4()] {
		add(a, p.Port, internal, external)
	}
}

// internal is the route of the ClusterIP. Clients that are not pods of the cluster
// are masqueraded: their replies would otherwise not find back through this node.
func (c *compilation) internal(set choice, is4 bool) *Route {
	masq := MasqueradeHairpin
	detect4, detect6 := c.node.Settings.Detect()
	switch {
	case c.node.MasqueradeAll:
		masq = MasqueradeAll
	case is4 && detect4, !is4 && detect6:
		masq = MasqueradeOffCluster
	}
	if c.svc.InternalLocal {
		return set.route(set.local, masq).local()
	}
	return set.route(set.cluster, masq)
}

// external is the route of addresses for clients outside the cluster.
//
// externalTrafficPolicy: Local keeps the client's address, so the packet may go
// only to a pod on this node. Pods and the node itself are internal clients: they get the
// whole cluster's endpoints, the node masqueraded.
func (c *compilation) external(set choice) (internal, external *Route) {
	if c.node.Outside {
		return c.outside(set)
	}
	if !c.svc.ExternalLocal {
		r := set.route(set.cluster, MasqueradeAll)
		return r, r
	}
	return set.route(set.cluster, MasqueradeOffCluster), set.route(set.local, MasqueradeHairpin).local()
}
