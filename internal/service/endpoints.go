package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A candidate is an endpoint of one Service port that may still be left out.
type candidate struct {
	Endpoint // its Weight is the pod's own, where 0 means 0
	from     *SliceEndpoint
}

// collect returns the endpoints that a Service port has in one family, sorted by
// address. Where two pods have the same address and port (an address was used
// again), the one that is not terminating wins.
//
// Each slice is a sorted run, nearly always as it comes, so that merging them is all
// that a Service with thousands of endpoints costs.
//
// left is called with each endpoint that is no candidate, and why; nil: nothing is asked.
func (c *compilation) collect(p Port, from []run, is4 bool, left func(candidate, Exclusion)) []candidate {
	var runs [][]candidate
	for _, source := range from {
		s, port := source.slice, source.port
		run := make([]candidate, 0, len(s.Endpoints))
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			at := candidate{Endpoint{Addr: netip.AddrPortFrom(e.Addr, port), Local: e.Node != "" && e.Node == c.node.Name}, e}
			why := e.noCandidate(port, is4)
			if why == Used && c.loop(Key{at.Addr, p.Proto}, s, i) {
				why = IsFrontend
			}
			if why != Used {
				if left != nil {
					left(at, why)
				}
				continue
			}
			if c.svc.Weighted {
				at.Weight = e.weight()
			}
			run = append(run, at)
		}
		if !slices.IsSortedFunc(run, candidate.compare) {
			slices.SortFunc(run, candidate.compare)
		}
		if len(run) > 0 {
			runs = append(runs, run)
		}
	}
	return slices.CompactFunc(merge(runs), func(a, b candidate) bool {
		if a.Addr == b.Addr && left != nil {
			left(b, SameAddress)
		}
		return a.Addr == b.Addr
	})
}

// noCandidate returns why an endpoint cannot be one of a Service port in a family, whose
// number in the endpoint's slice is port.
func (e *SliceEndpoint) noCandidate(port uint16, is4 bool) Exclusion {
	switch {
	case !e.Addr.IsValid():
		return InvalidAddress
	case e.Addr.Is4() != is4:
		return OtherFamily
	case port == 0:
		return NoSuchPortInSlice
	}
	return Used
}

// merge makes one sorted run of many, two at a time.
func merge(runs [][]candidate) []candidate {
	if len(runs) == 0 {
		return nil
	}
	for len(runs) > 1 {
		half := runs[:0]
		for pair := range slices.Chunk(runs, 2) {
			if len(pair) == 1 {
				half = append(half, pair[0])
				continue
			}
			half = append(half, merge2(pair[0], pair[1]))
		}
		runs = half
	}
	return runs[0]
}

func merge2(a, b []candidate) []candidate {
	out := make([]candidate, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].compare(a[0]) < 0 {
			a, b = b, a
		}
		out = append(out, a[0])
		a = a[1:]
	}
	return append(append(out, a...), b...)
}

// compare orders candidates by address, the better one of the same address first.
// Every field that can differ takes part: the order of slices must not matter.
func (c candidate) compare(o candidate) int {
	if d := c.Addr.Compare(o.Addr); d != 0 {
		return d
	}
	return cmp.Or(
		first(!c.from.Terminating, !o.from.Terminating),
		first(c.from.Ready, o.from.Ready),
		first(c.from.Serving, o.from.Serving),
		first(c.Local, o.Local),
		slices.Compare(c.from.NodeHints, o.from.NodeHints),
		slices.Compare(c.from.ZoneHints, o.from.ZoneHints),
		cmp.Compare(o.Weight, c.Weight),
	)
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

// localReady counts the addresses of ready endpoints of one family on a node.
func localReady(eps []*Slice, node string, is4 bool) int {
	local := map[netip.Addr]bool{}
	for _, s := range eps {
		if len(s.Ports) == 0 {
			continue // no port to send to
		}
		for _, e := range s.Endpoints {
			if e.Addr.Is4() == is4 && e.Ready && !e.Terminating && e.Node != "" && e.Node == node {
				local[e.Addr] = true
			}
		}
	}
	return len(local)
}

// A choice is what a node may use of a Service port's endpoints.
type choice struct {
	cluster, local []Endpoint  // under policy Cluster, under policy Local
	any            bool        // some endpoint somewhere could answer
	all            []candidate // wherever they are
	keeps          func(candidate) bool
}

// categorize applies readiness, topology and the fallback to terminating endpoints, as the
// selections of the two policies say. A list has at most so many slots; 0: any number.
func categorize(all []candidate, p Port, svc *Service, node Node, slots int) choice {
	set := choice{all: all, keeps: keeps(p, svc, node.deadTo(all)), any: slices.ContainsFunc(all, candidate.answers)}
	set.cluster = policyCluster(all, svc, node).pick(all)
	if svc.InternalLocal || svc.ExternalLocal {
		set.local = policyLocal(all, svc).pick(all)
	}
	if svc.Weighted {
		normalize(set.cluster, slots)
		normalize(set.local, slots)
	}
	return set
}

// keeps returns the filter for the endpoints that keep the flows they have. Of SCTP, and
// of TCP where the Service ends no connection, the list is not needed. UDP has nobody who notices
// that a dead node does not answer: its flows go to another endpoint.
func keeps(p Port, svc *Service, dead []string) func(candidate) bool {
	s := selection{dead: dead}
	switch {
	case p.Proto == api.SCTP, p.Proto == api.TCP && svc.Termination == TerminateNever:
		return func(candidate) bool { return false }
	case p.Proto == api.TCP && svc.Termination == TerminateGone:
		return func(candidate) bool { return true }
	}
	return func(c candidate) bool {
		return (c.from.Ready || c.from.Serving) && (p.Proto == api.TCP || !s.onDead(&c))
	}
}

// retained returns the endpoints that keep their flows and that the routes lack, nearly
// always none.
func (s choice) retained(internal, external *Route) []netip.AddrPort {
	if max(len(internal.Endpoints), len(external.Endpoints)) == len(s.all) {
		return nil
	}
	var rest []netip.AddrPort
	for _, c := range s.all {
		if s.keeps(c) && !internal.has(c.Addr) && !external.has(c.Addr) {
			rest = append(rest, c.Addr)
		}
	}
	return slices.Clip(rest)
}

// weight returns the pod's share.
func (e *SliceEndpoint) weight() uint16 {
	if e.HasWeight {
		return e.Weight
	}
	return 1
}

// normalize writes weights in the one way in which the same shares are always written:
// without a common divisor, and none at all if they are equal. Those that need more slots than
// there may be are scaled down.
func normalize(eps []Endpoint, slots int) {
	scale(eps, slots)
	divisor, most := uint16(0), uint16(0)
	for _, e := range eps {
		divisor, most = gcd(divisor, e.Weight), max(most, e.Weight)
	}
	for i := range eps {
		if most == divisor { // all are equal
			eps[i].Weight = 0
		} else {
			eps[i].Weight /= divisor
		}
	}
}

func gcd(a, b uint16) uint16 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
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

// local marks a route of policy Local, to which nothing else points yet.
func (r *Route) local() *Route {
	r.Local = r.Action == Forward
	return r
}
