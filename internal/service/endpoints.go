package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A candidate is an endpoint of one Service port that may still be left out.
type candidate struct {
	Endpoint // its Weight is the pod's own: here 0 means 0
	from     *SliceEndpoint
}

// collect returns the endpoints of a Service port in one family, sorted by address. If two pods have the same address
// and port, because an address was used again, the pod that is not terminating wins.
//
// Each slice is a sorted run, nearly always in the order of the object. Merging the runs is therefore the only cost of
// thousands of endpoints.
//
// onRejected is called for each endpoint that is left out, with the reason. It may be nil.
func (c *compilation) collect(p Port, from []run, is4 bool, onRejected func(candidate, Exclusion)) []candidate {
	var runs [][]candidate
	for _, source := range from {
		s, port := source.slice, source.port
		run := make([]candidate, 0, len(s.Endpoints))
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			at := candidate{Endpoint{Addr: netip.AddrPortFrom(e.Addr, port), Local: e.Node != "" && e.Node == c.facts.Name}, e}
			why := e.noCandidate(port, is4)
			if why == Used && c.loop(Key{at.Addr, p.Proto}, s, i) {
				why = IsFrontend
			}
			if why != Used {
				if onRejected != nil {
					onRejected(at, why)
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
		if a.Addr == b.Addr && onRejected != nil {
			onRejected(b, SameAddress)
		}
		return a.Addr == b.Addr
	})
}

// noCandidate returns the reason why an endpoint cannot serve a Service port in a family. It returns Used if the
// endpoint can serve the port. port is the number of the Service port in the slice. It is 0 if the slice does not have
// the port.
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

// merge merges sorted runs, two at a time.
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

// compare orders candidates by address, the better candidate of an address first. It compares every field that can
// differ, so the order of the slices does not matter.
func (c candidate) compare(o candidate) int {
	if d := c.Addr.Compare(o.Addr); d != 0 {
		return d
	}
	return cmp.Or(
		compareTrueFirst(!c.from.Terminating, !o.from.Terminating),
		compareTrueFirst(c.from.Ready, o.from.Ready),
		compareTrueFirst(c.from.Serving, o.from.Serving),
		compareTrueFirst(c.Local, o.Local),
		slices.Compare(c.from.NodeHints, o.from.NodeHints),
		slices.Compare(c.from.ZoneHints, o.from.ZoneHints),
		cmp.Compare(o.Weight, c.Weight),
	)
}

// compareTrueFirst orders true before false.
func compareTrueFirst(a, b bool) int {
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
			continue // no endpoint can get a packet
		}
		for _, e := range s.Endpoints {
			if e.Addr.Is4() == is4 && e.Ready && !e.Terminating && e.Node != "" && e.Node == node {
				local[e.Addr] = true
			}
		}
	}
	return len(local)
}

// A choice is the part of a Service port's endpoints that a node may use.
type choice struct {
	cluster, local           []Endpoint           // for policy Cluster, for policy Local
	spareCluster, spareLocal int                  // Route.Spare of each
	any                      bool                 // an endpoint on some node could answer
	all                      []candidate          // on all nodes
	keeps                    func(candidate) bool // reports whether an endpoint keeps its existing flows
}

// categorize applies readiness, topology and the fallback to terminating endpoints. A list has at most that many slots;
// 0: no limit.
func categorize(all []candidate, p Port, svc *Service, facts Facts, slots int) choice {
	set := choice{all: all, keeps: keeps(p, svc, facts.deadTo(all)), any: slices.ContainsFunc(all, candidate.answers)}
	cluster := policyCluster(all, p, svc, facts)
	set.cluster = cluster.pick(all)
	set.spareCluster = cluster.spare(set.cluster)
	if svc.InternalLocal || svc.ExternalLocal {
		local := policyLocal(all, p, svc, facts)
		set.local = local.pick(all)
		set.spareLocal = local.spare(set.local)
	}
	if svc.Weighted {
		normalize(set.cluster, slots)
		normalize(set.local, slots)
	}
	return set
}

// keeps returns the filter for endpoints that keep their existing flows. For SCTP, and for TCP with policy never, no
// connection is ended, so the filter selects no endpoint. UDP clients do not notice that a dead node is silent, so UDP
// flows move to another endpoint.
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

// retained returns the endpoints that keep their flows although the routes do not have them: nearly always none.
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

// normalize gives equal shares equal weights: it removes the common divisor, and all weights if they are equal. Weights
// that need more slots than the limit are scaled down.
func normalize(eps []Endpoint, slots int) {
	scale(eps, slots)
	divisor, most := uint16(0), uint16(0)
	for _, e := range eps {
		divisor, most = gcd(divisor, e.Weight), max(most, e.Weight)
	}
	for i := range eps {
		if most == divisor { // all weights are equal
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

// route returns the Route to eps. Without endpoints the Route rejects if no node has an endpoint for the client. It
// drops if another node has one, so that a client that was sent to the wrong node tries again.
func (s choice) route(eps []Endpoint, spare int, m Masquerade) *Route {
	switch {
	case len(eps) > 0:
		return &Route{Action: Forward, Endpoints: eps, Masquerade: m, Spare: spare}
	case s.any:
		return &Route{Action: Drop}
	}
	return &Route{Action: Reject}
}

// local marks a new route of policy Local.
func (r *Route) local() *Route {
	r.Local = r.Action == Forward
	return r
}
