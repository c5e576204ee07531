package service

import (
	"net/netip"
	"slices"
)

// An Exclusion says why an endpoint gets no new connections. The zero value, Used, says that it gets new connections.
type Exclusion uint8

// The exclusions, in the order of the checks.
const (
	Used              Exclusion = iota
	InvalidAddress              // the endpoint has no address
	OtherFamily                 // the Service has no ClusterIP of its family
	NoSuchPortInSlice           // the slice has no port of that name and protocol
	IsFrontend                  // it is the address of a Service: packets would go round
	SameAddress                 // another entry with the same address and port is preferred
	OtherNode                   // policy Local
	UnknownNode                 // policy Local
	NotReady
	NotServing       // terminating
	TerminatingSpare // terminating, while another endpoint is ready
	NodeDead         // other nodes report its node dead
	HintOtherNode    // topology hints
	HintOtherZone    // topology hints
	ZeroWeight
	Ejected // it failed connections of this node
	exclusionCount
)

var exclusionTexts = [exclusionCount]string{
	"used",
	"its address is not valid",
	"the Service has no ClusterIP of its IP family",
	"its EndpointSlice does not have the port",
	"it is a Service's own address, to which packets would come back",
	"another entry with this address and port is preferred",
	"on another node, and the traffic policy is Local",
	"its node is not known, and the traffic policy is Local",
	"not ready",
	"terminating, and not serving any more",
	"terminating, while others are ready",
	"its node is declared dead by its peers",
	"its hints name other nodes",
	"its hints name other zones",
	"its weight is 0",
	"it refused connections of this node or did not answer them, and gets none for a while",
}

// String returns the reason as a phrase: "not ready"; for Used "used".
func (x Exclusion) String() string { return exclusionTexts[x] }

// A selection decides which candidates get new connections under one traffic policy, with the rules of kube-proxy
// (KEP-1669, KEP-2433, KEP-3015):
//
//   - Cluster: the ready candidates, after hints. If there are none: all candidates that terminate but still serve.
//   - Local: the ready candidates on this node. If there are none: those on this node that terminate but still serve.
//     Hints do not apply.
//
// Endpoints on a node that other nodes report dead are treated as not ready. There are two exceptions: a node never
// treats itself as dead, and the report is ignored if no endpoint would be left, because the other nodes may be wrong.
//
// Then candidates of weight 0 are left out if another candidate has a weight. Ejected endpoints come last (eject).
type selection struct {
	local    bool
	dead     []string         // endpoints on these nodes count as not ready
	fallback bool             // no candidate is ready: use candidates that terminate but serve
	dropZero bool             // candidates of weight 0 get no new connections
	hintKind Exclusion        // HintOtherNode or HintOtherZone: respect these hints; Used: no hints
	here     string           // the node or zone that the hints must name
	ejected  []netip.AddrPort // endpoints that are left out
}

func policyCluster(all []candidate, p Port, svc *Service, f Facts) selection {
	s := selection{dead: f.deadTo(all)}
	s.fallback = !slices.ContainsFunc(all, s.ready)
	// Try node hints, then zone hints. hinted reads hintKind.
	if s.hintKind = HintOtherNode; !s.hinted(all, f.Name) {
		if s.hintKind = HintOtherZone; !s.hinted(all, f.Zone) {
			s.hintKind = Used
		}
	}
	if s.here = f.Name; s.hintKind == HintOtherZone {
		s.here = f.Zone
	}
	return s.weighted(all, svc).eject(all, p, svc, f)
}

func policyLocal(all []candidate, p Port, svc *Service, f Facts) selection {
	s := selection{local: true}
	s.fallback = !slices.ContainsFunc(all, func(c candidate) bool { return c.from.Ready && c.Local })
	return s.weighted(all, svc).eject(all, p, svc, f)
}

// weighted returns s with the rule for weight 0. If all candidates have weight 0, they count as equal: otherwise none
// would get traffic.
func (s selection) weighted(all []candidate, svc *Service) selection {
	s.dropZero = svc.Weighted && slices.ContainsFunc(all, func(c candidate) bool { return c.Weight > 0 && s.exclusion(&c) == Used })
	return s
}

// hinted reports whether topology hints of the kind s.hintKind count. Either all hints count or none: every ready
// endpoint must have a hint, and one hint must name this node or zone. Otherwise a half-written update would decide the
// traffic's way.
func (s selection) hinted(all []candidate, here string) bool {
	found := false
	for i := range all {
		if !s.ready(all[i]) {
			continue
		}
		names := all[i].hints(s.hintKind)
		if len(names) == 0 {
			return false
		}
		found = found || slices.Contains(names, here)
	}
	return found && here != ""
}

// ready reports whether a candidate is ready and on a node that is not dead.
func (s selection) ready(c candidate) bool { return c.from.Ready && !s.onDead(&c) }

// onDead reports whether a candidate is on a dead node. A node is never dead to itself.
func (s *selection) onDead(c *candidate) bool {
	return len(s.dead) > 0 && !c.Local && slices.Contains(s.dead, c.from.Node)
}

// deadTo returns the dead nodes, because their endpoints are left out. It returns none if no other endpoint could
// answer.
func (f Facts) deadTo(all []candidate) []string {
	if len(f.Dead) == 0 {
		return nil
	}
	s := selection{dead: f.Dead}
	if slices.ContainsFunc(all, func(c candidate) bool { return c.answers() && !s.onDead(&c) }) {
		return f.Dead
	}
	return nil
}

// hints returns the nodes or zones in the hints of a kind.
func (c *candidate) hints(kind Exclusion) []string {
	if kind == HintOtherNode {
		return c.from.NodeHints
	}
	return c.from.ZoneHints
}

// answers reports whether an endpoint could serve a client of some node.
func (c candidate) answers() bool { return c.from.Ready || c.from.Serving && c.from.Terminating }

// exclusion returns the reason why a candidate gets no new connections; Used if it does.
func (s *selection) exclusion(c *candidate) Exclusion {
	switch e := c.from; {
	case s.local && e.Node == "":
		return UnknownNode
	case s.local && !c.Local:
		return OtherNode
	case !e.Ready && !e.Terminating:
		return NotReady
	case !e.Ready && !e.Serving:
		return NotServing
	case !e.Ready && !s.fallback:
		return TerminatingSpare
	case s.onDead(c):
		return NodeDead
	case s.hintKind != Used && !slices.Contains(c.hints(s.hintKind), s.here):
		return s.hintKind
	case s.dropZero && c.Weight == 0:
		return ZeroWeight
	case len(s.ejected) > 0 && contains(s.ejected, c.Addr):
		return Ejected
	}
	return Used
}

// pick returns the candidates that get new connections.
func (s selection) pick(all []candidate) []Endpoint {
	n := 0
	for i := range all {
		if s.exclusion(&all[i]) == Used {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	eps := make([]Endpoint, 0, n)
	for i := range all {
		if s.exclusion(&all[i]) == Used {
			eps = append(eps, all[i].Endpoint)
		}
	}
	return eps
}
