package service

import (
	"net/netip"
	"slices"
)

// A candidate is an endpoint of one Service port that may still be left out.
type candidate struct {
	Endpoint
	ready, serving, terminating bool
	nodeHints, zoneHints        []string
}

// collect returns the endpoints that a Service port has in one family, sorted by
// address. Where two pods have the same address and port (an address was used
// again), the one that is not terminating wins.
func collect(eps []*Slice, p Port, is4 bool, node string) []candidate {
	var all []candidate
	for _, s := range eps {
		port := s.port(p)
		if port == 0 {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if !e.Addr.IsValid() || e.Addr.Is4() != is4 {
				continue
			}
			all = append(all, candidate{
				Endpoint: Endpoint{
					Addr:  netip.AddrPortFrom(e.Addr, port),
					Local: e.Node != "" && e.Node == node,
				},
				ready: e.Ready, serving: e.Serving, terminating: e.Terminating,
				nodeHints: e.NodeHints, zoneHints: e.ZoneHints,
			})
		}
	}
	slices.SortFunc(all, candidate.compare)
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.Addr == b.Addr })
}

// compare orders candidates by address, the better one of the same address first.
// Every field that can differ takes part: the order of slices must not matter.
func (c candidate) compare(o candidate) int {
	if d := c.Addr.Compare(o.Addr); d != 0 {
		return d
	}
	for _, d := range []int{
		first(!c.terminating, !o.terminating),
		first(c.ready, o.ready),
		first(c.serving, o.serving),
		first(c.Local, o.Local),
		slices.Compare(c.nodeHints, o.nodeHints),
	} {
		if d != 0 {
			return d
		}
	}
	return slices.Compare(c.zoneHints, o.zoneHints)
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// port returns the number that a Service's port has in the slice, 0 if it has none.
func (s *Slice) port(p Port) uint16 {
	for _, q := range s.Ports {
		if q.Name == p.Name && q.Proto == p.Proto {
			return q.Port
		}
	}
	return 0
}

// localReady counts the addresses of ready endpoints of one family on a node.
func localReady(eps []*Slice, node string, is4 bool) int {
	here := map[netip.Addr]bool{}
	for _, s := range eps {
		for _, e := range s.Endpoints {
			if e.Addr.Is4() == is4 && e.Ready && !e.Terminating && e.Node != "" && e.Node == node {
				here[e.Addr] = true
			}
		}
	}
	return len(here)
}

// A choice is what a node may use of a Service port's endpoints.
type choice struct {
	cluster, local []Endpoint       // under policy Cluster, under policy Local
	any            bool             // some endpoint somewhere could answer
	keep           []netip.AddrPort // all that keep the flows they have, wherever they are
}

// categorize applies readiness, topology and the fallback to terminating endpoints,
// with the rules of kube-proxy (KEP-1669, KEP-2433, KEP-3015):
//
//   - Cluster: the ready ones, after hints; if that leaves none, all that are
//     terminating but still serve, wherever they are.
//   - Local: the ready ones here; if there are none, those here that are terminating
//     but still serve. Hints do not apply.
func categorize(all []candidate, p Port, svc *Service, v Vantage) choice {
	var set choice
	set.keep = keepers(all, p, svc)
	draining := func(c candidate) bool { return c.serving && c.terminating }
	local := func(c candidate) bool { return c.Local }

	set.any = slices.ContainsFunc(all, func(c candidate) bool { return c.ready || draining(c) })

	hinted := hints(all, v)
	set.cluster = keep(all, func(c candidate) bool { return c.ready && hinted(c) })
	if len(set.cluster) == 0 {
		set.cluster = keep(all, draining)
	}
	if svc.InternalLocal || svc.ExternalLocal {
		set.local = keep(all, func(c candidate) bool { return c.ready && local(c) })
		if len(set.local) == 0 {
			set.local = keep(all, func(c candidate) bool { return draining(c) && local(c) })
		}
	}
	return set
}

// keepers returns the endpoints that keep the flows they have.
func keepers(all []candidate, p Port, svc *Service) []netip.AddrPort {
	if p.Proto == SCTP || p.Proto == TCP && svc.Close == CloseNever {
		return nil // nobody ends any
	}
	inSlice := p.Proto == TCP && svc.Close == CloseGone
	addrs := make([]netip.AddrPort, 0, len(all))
	for _, c := range all {
		if inSlice || c.ready || c.serving {
			addrs = append(addrs, c.Addr)
		}
	}
	return addrs
}

// besides returns those of keep that the routes lack: nearly always none.
func (s choice) besides(inside, outside *Route) []netip.AddrPort {
	if max(len(inside.Endpoints), len(outside.Endpoints)) == len(s.keep) {
		return nil // all of a route's are in keep
	}
	has := func(r *Route, a netip.AddrPort) bool {
		_, ok := slices.BinarySearchFunc(r.Endpoints, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		return ok
	}
	var rest []netip.AddrPort
	for _, a := range s.keep {
		if !has(inside, a) && !has(outside, a) {
			rest = append(rest, a)
		}
	}
	return rest
}

// hints returns the filter that topology hints ask for. It is all or nothing: hints
// count only if every ready endpoint has one of the kind and one of them is for us,
// or part of a half-written update would decide where traffic goes.
func hints(all []candidate, v Vantage) func(candidate) bool {
	usable := func(of func(candidate) []string, here string) bool {
		found := false
		for _, c := range all {
			if !c.ready {
				continue
			}
			if len(of(c)) == 0 {
				return false
			}
			found = found || slices.Contains(of(c), here)
		}
		return found && here != ""
	}
	node := func(c candidate) []string { return c.nodeHints }
	zone := func(c candidate) []string { return c.zoneHints }
	switch {
	case usable(node, v.Node):
		return func(c candidate) bool { return slices.Contains(c.nodeHints, v.Node) }
	case usable(zone, v.Zone):
		return func(c candidate) bool { return slices.Contains(c.zoneHints, v.Zone) }
	}
	return func(candidate) bool { return true }
}

func keep(all []candidate, want func(candidate) bool) []Endpoint {
	var eps []Endpoint
	for _, c := range all {
		if want(c) {
			eps = append(eps, c.Endpoint)
		}
	}
	return eps
}

// route makes the Route to eps. With none it refuses: by an answer if nothing
// anywhere could serve the client, silently if something elsewhere could, so that a
// client that was sent to the wrong node tries again.
func (s choice) route(eps []Endpoint, m Masquerade) *Route {
	switch {
	case len(eps) > 0:
		return &Route{Action: Forward, Endpoints: eps, Masquerade: m}
	case s.any:
		return &Route{Action: Drop}
	}
	return &Route{Action: Reject}
}

// local marks a route of policy Local, which nobody else has yet.
func (r *Route) local() *Route {
	r.Local = true
	return r
}
