package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Explanation says whether a node sends new connections for one port of a Service to one endpoint, and if not, why.
type Explanation struct {
	Service api.PortName
	Proto   api.Proto
	Addr    netip.AddrPort // port 0 with NoSuchPortInSlice
	Slice   api.Name       // the EndpointSlice of the endpoint
	Pod     string         // empty: not in the slice
	Node    string         // empty: not in the slice
	Weight  uint16         // counts if the Service is Weighted
	// Internal is for traffic to the ClusterIP. External is for traffic from outside the cluster to the Service's other
	// addresses. Cluster is for internal traffic to these addresses, which always has policy Cluster.
	Internal, External, Cluster Exclusion
}

// At returns the reason for a class of traffic at one of the Service's frontends.
func (x Explanation) At(f *Frontend, internal bool) Exclusion {
	switch {
	case f.ClusterIP:
		return x.Internal
	case internal:
		return x.Cluster
	}
	return x.External
}

// Explain returns an Explanation for each port of svc and each endpoint in eps. It uses the predicates of Compile: a
// Route has exactly the endpoints that are Used at its frontend. The result is sorted by port, in the order of the
// Service, then by address. It is empty for a Service without addresses (headless, ExternalName).
//
// entry is the Service's entry in a table. It knows the endpoints that are frontends of other Services.
func Explain(svc *Service, eps []*Slice, facts Facts, entry *Entry) []Explanation {
	c := compilation{svc: svc, facts: facts, refused: entry.refused, entry: &Entry{}}
	families := c.families()
	e := explainer{compilation: &c, slices: eps, sources: sourcesOf(eps)}
	var all []Explanation
	for _, port := range c.admit() {
		from := len(all)
		for i, ip := range families {
			all = append(all, e.port(port, ip.Is4(), i == 0)...)
		}
		slices.SortStableFunc(all[from:], func(a, b Explanation) int {
			return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Internal, b.Internal))
		})
	}
	return all
}

// An explainer is one run of Explain.
type explainer struct {
	*compilation
	slices  []*Slice
	sources map[*SliceEndpoint]source
}

// A source is the place of an endpoint in a slice.
type source struct {
	slice *Slice
	index int
}

func sourcesOf(eps []*Slice) map[*SliceEndpoint]source {
	all := map[*SliceEndpoint]source{}
	for _, s := range eps {
		for i := range s.Endpoints {
			all[&s.Endpoints[i]] = source{s, i}
		}
	}
	return all
}

// port explains the endpoints of a port in one family. With first, it also explains the endpoints of families that the
// Service does not have.
func (e *explainer) port(p Port, is4, first bool) (all []Explanation) {
	one := func(c candidate, internal, external, cluster Exclusion) {
		at := e.sources[c.from]
		all = append(all, Explanation{
			Service: api.PortName{Name: e.svc.Name, Port: p.Name}, Proto: p.Proto, Addr: c.Addr,
			Slice: at.slice.Name, Pod: at.slice.Pods.At(at.index), Node: c.from.Node, Weight: c.from.weight(),
			Internal: internal, External: external, Cluster: cluster,
		})
	}
	candidates := e.collect(p, allRuns(p, e.slices), is4, func(c candidate, why Exclusion) {
		switch {
		case why == OtherFamily && (!first || e.serves(c.from.Addr.Is4())), why == InvalidAddress && !first:
			return // another call explains it: the call for its family, or the first
		}
		one(c, why, why, why)
	})
	cluster, local := policyCluster(candidates, p, e.svc, e.facts), policyLocal(candidates, p, e.svc, e.facts)
	internal, external := cluster, cluster
	if e.svc.InternalLocal {
		internal = local
	}
	if e.svc.ExternalLocal && !e.facts.Outside {
		external = local
	}
	for i := range candidates {
		c := &candidates[i]
		one(*c, internal.exclusion(c), external.exclusion(c), cluster.exclusion(c))
	}
	return all
}

// serves reports whether the Service has a ClusterIP of a family.
func (c *compilation) serves(is4 bool) bool {
	return slices.ContainsFunc(c.families(), func(a netip.Addr) bool { return a.Is4() == is4 })
}
