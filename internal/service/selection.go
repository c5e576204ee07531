package service

import "slices"

// An Exclusion says why an endpoint gets no new connections. The zero value says that it
// does get them.
type Exclusion uint8

// The exclusions, in the order in which they are looked for.
const (
	Used              Exclusion = iota
	InvalidAddress              // it has no address
	OtherFamily                 // the Service has no ClusterIP of its family
	NoSuchPortInSlice           // the slice has no port of that name and protocol
	IsFrontend                  // it is an address of a Service: packets would go round
	SameAddress                 // an endpoint with the same address and port is preferred
	OtherNode                   // policy Local
	UnknownNode                 // policy Local
	NotReady
	NotServing       // terminating
	TerminatingSpare // terminating; only used where no endpoint is ready
	NodeDead         // its peers say so
	HintOtherNode    // topology hints
	HintOtherZone    // topology hints
	ZeroWeight
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
}

// String returns the reason as a phrase: "not ready"; for Used "used".
func (x Exclusion) String() string { return exclusionTexts[x] }

// A selection decides which candidates get new connections under one traffic policy, with
// the rules of kube-proxy (KEP-1669, KEP-2433, KEP-3015):
//
//   - Cluster: the ready ones, after hints; if that leaves none, all that are
//     terminating but still serve, wherever they are.
//   - Local: the ready ones here; if there are none, those here that are terminating
//     but still serve. Hints do not apply.
//
// A node that its peers declare dead counts as one without ready endpoints, but for itself, and
// but where that would leave no endpoint at all: the peers may be wrong.
//
// Weights come last: where one that is left has a weight, those of weight 0 go.
type selection struct {
	local    bool
	dead     []string  // nodes whose endpoints count as not ready
	fallback bool      // none is ready: those that are terminating and serve
	dropZero bool      // those of weight 0 get nothing
	hint     Exclusion // HintOtherNode or HintOtherZone: only the ready ones for us; Used: no hints
	here     string    // the node or zone that hints must name
}

func policyCluster(all []candidate, svc *Service, n Node) selection {
	s := selection{dead: n.deadTo(all)}
	s.fallback = !slices.ContainsFunc(all, s.ready)
	if s.hint = HintOtherNode; !s.hinted(all, n.Name) {
		if s.hint = HintOtherZone; !s.hinted(all, n.Zone) {
			s.hint = Used
		}
	}
	if s.here = n.Name; s.hint == HintOtherZone {
		s.here = n.Zone
	}
	return s.weighted(all, svc)
}

func policyLocal(all []candidate, svc *Service) selection {
	s := selection{local: true}
	s.fallback = !slices.ContainsFunc(all, func(c candidate) bool { return c.from.Ready && c.Local })
	return s.weighted(all, svc)
}

// weighted returns s with the rule for weight 0. If all have weight 0 they are equal:
// weights share traffic out, and it would be no sharing if none got any.
func (s selection) weighted(all []candidate, svc *Service) selection {
	s.dropZero = svc.Weighted && slices.ContainsFunc(all, func(c candidate) bool { return c.Weight > 0 && s.exclusion(&c) == Used })
	return s
}

// hinted reports whether topology hints of the kind s.hint count. It is all or nothing: every ready
// endpoint must have one and one of them must be for us, or part of a half-written update
// would decide where traffic goes.
func (s selection) hinted(all []candidate, here string) bool {
	found := false
	for i := range all {
		if !s.ready(all[i]) {
			continue
		}
		names := all[i].hints(s.hint)
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

// deadTo returns the nodes whose endpoints are left out for being dead: all that are, as long as
// an endpoint elsewhere could answer.
func (n Node) deadTo(all []candidate) []string {
	if len(n.Dead) == 0 {
		return nil
	}
	s := selection{dead: n.Dead}
	if slices.ContainsFunc(all, func(c candidate) bool { return c.answers() && !s.onDead(&c) }) {
		return n.Dead
	}
	return nil
}

// hints returns the nodes or zones that the hints of a kind name.
func (c *candidate) hints(kind Exclusion) []string {
	if kind == HintOtherNode {
		return c.from.NodeHints
	}
	return c.from.ZoneHints
}

// answers reports whether an endpoint could serve some client of some node.
func (c candidate) answers() bool { return c.from.Ready || c.from.Serving && c.from.Terminating }

// exclusion returns why a candidate gets no new connections, Used if it does.
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
	case s.hint != Used && !slices.Contains(c.hints(s.hint), s.here):
		return s.hint
	case s.dropZero && c.Weight == 0:
		return ZeroWeight
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
