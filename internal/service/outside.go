package service

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Table can also be compiled for a load balancer in front of the cluster (Node.Outside). It answers only for load
// balancers' addresses, and sends connections
//
//	straight to pods    Compile(svc, its EndpointSlices, facts)
//	to NodePorts        Compile(Instances(svc, nodes), facts)
//
// externalTrafficPolicy Local removes no pod there, because no pod is on that machine. With NodePorts it decides which
// nodes get connections, and the share of each node.

// outside returns the routes of a load balancer's address outside of the cluster. Clients in the cluster are always
// masqueraded, because answers to them would not return to this machine.
func (c *compilation) outside(set choice) (internal, external *Route) {
	all := set.route(set.cluster, set.spareCluster, MasqueradeAll)
	if c.facts.MasqueradeAll || all.Action != Forward {
		return all, all
	}
	return all, set.route(set.cluster, set.spareCluster, MasqueradeHairpin)
}

// An Instance is a node in the view of a load balancer outside of the cluster.
type Instance struct {
	Name     string
	Addrs    []netip.Addr // the first address of each family gets connections
	Excluded string       // why load balancers must not use the node; empty: they may
}

// Equal reports whether all fields of n and o are equal.
func (n Instance) Equal(o Instance) bool {
	return n.Name == o.Name && n.Excluded == o.Excluded && slices.Equal(n.Addrs, o.Addrs)
}

// Addr returns the node's address of a family; invalid if it has none.
func (n Instance) Addr(is4 bool) netip.Addr {
	if i := slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
		return n.Addrs[i]
	}
	return netip.Addr{}
}

// A ProbeState is the result of a load balancer's health checks of a node.
type ProbeState uint8

// The states.
const (
	Unprobed ProbeState = iota // no answer yet, and no deadline has passed; counts as Failing
	Passing
	Failing // the node answers that it must not be used
	Silent  // the node does not answer
	probeStateCount
)

// String returns "unprobed", "passing", "failing" or "silent".
func (s ProbeState) String() string {
	return [probeStateCount]string{"unprobed", "passing", "failing", "silent"}[s]
}

// A ProbeResult is a state with the share that the node asks for.
type ProbeResult struct {
	State ProbeState
	// Weight is the node's share of new connections: the number of its endpoints; 0: the node does not say.
	Weight uint16
}

// Instances returns a Service and Slices for Compile in which nodes take the place of pods: their addresses with the
// Service's node ports. result returns the health of a node's address. Under externalTrafficPolicy Local the nodes'
// weights count.
//
//   - A node that passes is a ready endpoint.
//   - A silent node is a terminating endpoint that serves. It gets connections if no node passes, because then the
//     checks themselves may be lost.
//   - A failing node gets no connections. An excluded node gets no new connections and keeps its existing connections.
func Instances(svc *Service, nodes []Instance, result func(netip.Addr) ProbeResult) (*Service, []*Slice) {
	own := *svc
	own.Weighted = svc.ExternalLocal
	s := &Slice{Name: svc.Name, Service: svc.Name}
	for _, p := range svc.Ports {
		if p.NodePort == 0 {
			s.Problems = api.AddProblem(s.Problems, "NoNodePort", "port %d/%v has no node port, and so no endpoint here [set allocateLoadBalancerNodePorts, or let the balancer send to pods]", p.Port, p.Proto)
			continue
		}
		s.Ports = append(s.Ports, SlicePort{Name: p.Name, Proto: p.Proto, Port: p.NodePort})
	}
	for _, n := range nodes {
		for _, is4 := range []bool{true, false} {
			if a := n.Addr(is4); a.IsValid() {
				s.Endpoints = append(s.Endpoints, n.endpoint(a, result(a)))
			}
		}
	}
	slices.SortFunc(s.Endpoints, func(a, b SliceEndpoint) int { return a.Addr.Compare(b.Addr) })
	return &own, []*Slice{s}
}

func (n Instance) endpoint(a netip.Addr, r ProbeResult) SliceEndpoint {
	e := SliceEndpoint{Addr: a, Node: n.Name}
	switch {
	case n.Excluded != "":
		e.Serving = r.State == Passing || r.State == Silent
	case r.State == Passing:
		e.Ready, e.Serving = true, true
		e.Weight, e.HasWeight = r.Weight, r.Weight > 0
	case r.State == Silent:
		e.Serving, e.Terminating = true, true
	}
	return e
}
