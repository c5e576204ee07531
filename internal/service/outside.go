package service

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// What a Table is compiled for need not be one of the cluster's nodes. A balancer outside of it
// (Node.Outside) answers for load balancers' addresses only, and takes connections
//
//	straight to pods    Compile(svc, its EndpointSlices, node)
//	to NodePorts        Compile(Instances(svc, nodes), node)
//
// externalTrafficPolicy Local leaves no pod out there: no pod is on that machine. With NodePorts
// it decides which nodes take connections, and each node's share.

// outside is what a Route of a load balancer's address does outside of the cluster. Clients in
// the cluster are masqueraded always: answers to them would not come back here.
func (c *compilation) outside(set choice) (internal, external *Route) {
	all := set.route(set.cluster, MasqueradeAll)
	if c.node.MasqueradeAll || all.Action != Forward {
		return all, all
	}
	return all, set.route(set.cluster, MasqueradeHairpin)
}

// An Instance is a node as a balancer outside of the cluster sees it.
type Instance struct {
	Name     string
	Addrs    []netip.Addr // the first of each family takes connections
	Excluded string       // why load balancers must not use it; empty: they may
}

// Equal reports whether n and o say the same.
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

// A ProbeState is what a balancer knows of a node by its health checks.
type ProbeState uint8

// The states.
const (
	Unprobed ProbeState = iota // no answer yet, and no deadline has passed: as Failing
	Passing
	Failing // it answers that it must not be used
	Silent  // it does not answer
	probeStateCount
)

// String returns "unprobed", "passing", "failing" or "silent".
func (s ProbeState) String() string {
	return [probeStateCount]string{"unprobed", "passing", "failing", "silent"}[s]
}

// A ProbeResult is a state, and what the node asks for.
type ProbeResult struct {
	State ProbeState
	// Weight is the node's share of new connections: the number of its endpoints; 0: it does not say.
	Weight uint16
}

// Instances returns a Service and Slices for Compile, in which nodes stand for pods: their
// addresses with the Service's node ports. result says what the health check of an address of a
// node says. Under externalTrafficPolicy Local the nodes' weights count.
//
//   - A node that passes is a ready endpoint.
//   - One that is silent is as a terminating endpoint that serves: it gets connections where no
//     node passes, for then it may be the checks that do not get through.
//   - One that fails gets none. So does one that is excluded, and it keeps what it has.
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
