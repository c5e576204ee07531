package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Explanation says of one endpoint in a Service's slices, for one port of the Service,
// whether a node sends new connections there, and if not, why.
type Explanation struct {
	Service api.PortName
	Proto   api.Proto
	Addr    netip.AddrPort // port 0 with NoSuchPortInSlice
	Slice   api.Name       // the EndpointSlice that has it
	Pod     string         // empty: the slice does not say
	Node    string         // empty: the slice does not say
	// Internal is about traffic to the ClusterIP, External about traffic from outside the
	// cluster to all other addresses of the Service. Cluster is about internal traffic to
	// those: it is under policy Cluster, whatever the Service's policies are.
	Internal, External, Cluster Exclusion
}

// At returns what holds for a class of traffic at one of the Service's frontends.
func (x Explanation) At(f *Frontend, internal bool) Exclusion {
	switch {
	case f.ClusterIP:
		return x.Internal
	case internal:
		return x.Cluster
	}
	return x.External
}

// Explain returns, for each port of svc and each endpoint in eps, what Compile made of it
// and why, by Compile's own predicates: the endpoints of a Route are those that are Used at
// its frontend. It is sorted by port, in the Service's order, then by address. A Service
// without addresses (headless, ExternalName) has nothing to explain.
//
// entry is the Service's in a table: it says which endpoints are frontends of other Services.
func Explain(svc *Service, eps []*Slice, node Node, entry *Entry) []Explanation {
	c := compilation{svc: svc, node: node, refused: entry.refused, entry: &Entry{}}
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

// A source is where an endpoint is written.
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

// port explains the endpoints of a port in one family; with first also those of no family
// that the Service has.
func (e *explainer) port(p Port, is4, first bool) (all []Explanation) {
	one := func(c candidate, internal, external, cluster Exclusion) {
		at := e.sources[c.from]
		all = append(all, Explanation{
			Service: api.PortName{Name: e.svc.Name, Port: p.Name}, Proto: p.Proto, Addr: c.Addr,
			Slice: at.slice.Name, Pod: at.slice.Pods.At(at.index), Node: c.from.Node,
			Internal: internal, External: external, Cluster: cluster,
		})
	}
	candidates := e.collect(p, allRuns(p, e.slices), is4, func(c candidate, why Exclusion) {
		switch {
		case why == OtherFamily && (!first || e.serves(c.from.Addr.Is4())), why == InvalidAddress && !first:
			return // it is explained with its own family, or was with the first
		}
		one(c, why, why, why)
	})
	cluster, local := policyCluster(candidates, e.svc, e.node), policyLocal(candidates, e.svc)
	internal, external := cluster, cluster
	if e.svc.InternalLocal {
		internal = local
	}
	if e.svc.ExternalLocal && !e.node.Outside {
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
