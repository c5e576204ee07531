package service

import (
	"net/netip"
	"slices"
)

// An Entry is everything one Service asks of a node: the result of Compile. It is
// immutable.
type Entry struct {
	Name      Name
	Created   int64
	Frontends []*Frontend  // sorted by key, without duplicates
	Problems  []Problem    // what was left out, and why
	Health    *HealthCheck // what load balancers may ask; nil: nothing
	slices    []*Slice     // that it was compiled from; nil if it was not
	// External says that the Service asks for addresses for clients outside the cluster,
	// whether it got them or not: what it gets depends on NodeAddrs and APIServers.
	External bool
}

// A HealthCheck is what a load balancer may ask a node about one Service.
type HealthCheck struct {
	Service Name
	Port    uint16 // healthCheckNodePort; 0: there is no check
	// Endpoints4 and Endpoints6 are the numbers of IPv4 and IPv6 addresses of ready
	// endpoints on the node; 0 for a family that the Service does not have. Terminating
	// ones do not count, although traffic may still be sent to them: so load balancers
	// leave the node while its last pod still answers.
	Endpoints4, Endpoints6 int
}

// Compile decides what node does for svc, whose endpoints are in eps.
// It never fails: what makes no sense is left out and reported in Entry.Problems.
func Compile(svc *Service, eps []*Slice, node Node) *Entry {
	c := compilation{svc: svc, node: node, entry: &Entry{Name: svc.Name, Created: svc.Created, slices: eps}}
	c.entry.Problems = problemsOf(svc, eps)
	if len(svc.ClusterIPs) == 0 {
		return c.entry
	}
	c.entry.External = len(svc.BalancerIPs)+len(svc.ExternalIPs) > 0
	c.externalAddresses()
	c.balance = c.algorithm()
	for _, port := range svc.Ports {
		port, ok := c.admit(port)
		if !ok {
			continue
		}
		for _, ip := range c.families() {
			c.port(port, ip, collect(eps, port, ip.Is4(), svc.Weighted, node.Name, nil))
		}
	}
	if svc.HealthCheckNodePort != 0 && svc.ExternalLocal {
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
	ports []Port // those admitted so far
	entry *Entry
	// balance is how all frontends spread connections.
	balance Algorithm
	// balancers and externals are the addresses for clients outside the cluster; true: IPv4.
	balancers, externals map[bool][]netip.Addr
}

func (c *compilation) problem(reason, format string, args ...any) {
	c.entry.Problems = AddProblem(c.entry.Problems, reason, format, args...)
}

// admit returns a port as it can be served, and whether it can at all: the API server
// guarantees it, but a table must not fall with an object that came around the API
// server. A port that is left out is in no other's way.
func (c *compilation) admit(p Port) (Port, bool) {
	if p.Port == 0 {
		c.problem("InvalidPort", "port %q has no number; it is left out", p.Name)
		return p, false
	}
	for _, q := range c.ports {
		switch {
		case q.Proto != p.Proto:
		case q.Port == p.Port:
			c.problem("DuplicatePort", "port %d/%v of %q is already that of %q; it is left out", p.Port, p.Proto, p.Name, q.Name)
			return p, false
		case q.Name == p.Name:
			c.problem("DuplicatePort", "port name %q is used twice; port %d/%v is left out", p.Name, p.Port, p.Proto)
			return p, false
		}
	}
	for _, q := range c.ports {
		if p.NodePort != 0 && q.NodePort == p.NodePort && q.Proto == p.Proto {
			c.problem("DuplicatePort", "nodePort %d/%v of %q is already that of %q; it gets none", p.NodePort, p.Proto, p.Name, q.Name)
			p.NodePort = 0
		}
	}
	c.ports = append(c.ports, p)
	return p, true
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
	set := categorize(all, p, c.svc, c.node)
	name := PortName{c.svc.Name, p.Name}
	var retained []netip.AddrPort
	add := func(addr netip.Addr, port uint16, internal, external *Route) *Frontend {
		f := &Frontend{
			Addr: netip.AddrPortFrom(addr, port), Proto: p.Proto, Service: name, Internal: internal, External: external,
			Balance: c.balance, Affinity: c.svc.Affinity, Retained: retained, Termination: c.svc.Termination,
		}
		c.entry.Frontends = append(c.entry.Frontends, f)
		return f
	}

	in := c.internal(set, ip.Is4())
	retained = set.retained(in, in)
	add(ip, p.Port, in, in).ClusterIP = true

	internal, external := c.external(set)
	retained = set.retained(internal, external)
	if p.NodePort != 0 {
		any := netip.IPv6Unspecified()
		if ip.Is4() {
			any = netip.IPv4Unspecified()
		}
		add(any, p.NodePort, internal, external)
	}
	for _, a := range c.balancers[ip.Is4()] {
		add(a, p.Port, internal, external).Sources = c.sources(a)
	}
	for _, a := range c.externals[ip.Is4()] {
		add(a, p.Port, internal, external)
	}
}

// sources returns the clients that may use a load balancer's address. kube-proxy's rules:
// ranges of the other family do not count; none left, or a range of all addresses, means
// all clients.
func (c *compilation) sources(vip netip.Addr) []netip.Prefix {
	primary := c.node.Primary6
	if vip.Is4() {
		primary = c.node.Primary4
	}
	var all []netip.Prefix
	own := false
	for _, p := range c.svc.Sources {
		switch {
		case p.Addr().Is4() != vip.Is4():
			continue
		case p.Bits() == 0:
			return nil
		}
		all = append(all, p.Masked())
		own = own || p.Contains(primary)
	}
	if own {
		all = append(all, netip.PrefixFrom(vip, vip.BitLen()))
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	// One that lies in another adds nothing.
	inner := func(p netip.Prefix) bool {
		return slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Overlaps(p) })
	}
	var widest []netip.Prefix
	for _, p := range all {
		if !inner(p) {
			widest = append(widest, p)
		}
	}
	return widest
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
	if !c.svc.ExternalLocal {
		r := set.route(set.cluster, MasqueradeAll)
		return r, r
	}
	return set.route(set.cluster, MasqueradeOffCluster), set.route(set.local, MasqueradeHairpin).local()
}
