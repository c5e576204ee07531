package conntrack

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

// maxDumps returns how many filtered dumps cost as much as one dump that copies all flows of a protocol to this
// process, for a table with so many entries. Each dump walks the kernel's hash: 10 ms for the usual 262,144 buckets.
// 1,000 entries add 0.2 ms if the kernel filters them, and 2.2 ms if they are copied (BenchmarkDump). The result is 1
// for a small table, 7 for 100,000 entries and 10 for millions.
func maxDumps(entries int) int { return (50_000 + 11*entries) / (50_000 + entries) }

// A filter selects the entries that the kernel sends. A zero value of proto, to or by selects all.
type filter struct {
	is4   bool
	proto api.Proto // 0: any
	to    tupleEnd  // the original destination
	by    tupleEnd  // the source of the reply
}

// A tupleEnd is one end of a flow: an address, a port, or both.
type tupleEnd struct {
	addr netip.Addr
	port uint16
}

// tupleEndOf returns the part of a that the kernel can filter by. It cannot filter by IPv6 addresses: from 5.8 to at
// least 6.18 ctnetlink_filter_match_tuple passes every address except the wanted one.
func tupleEndOf(a netip.AddrPort) tupleEnd {
	e := tupleEnd{a.Addr(), a.Port()}
	if !a.Addr().Is4() || a.Addr().IsUnspecified() {
		e.addr = netip.Addr{}
	}
	return e
}

// plan returns filters that find all flows, one dump for each filter. A protocol that would need more than limit
// filters gets one that selects all its entries. Filters may find other entries as well: the caller compares each entry
// with the flows.
func plan(flows []flow.Flow, limit int) []filter {
	type group struct {
		is4   bool
		proto api.Proto
	}
	groups := map[group][]flow.Flow{}
	for _, f := range flows {
		g := group{f.Frontend.Addr().Is4(), f.Proto}
		groups[g] = append(groups[g], f)
	}
	var all []filter
	for g, flows := range groups {
		whole := filter{is4: g.is4, proto: g.proto}
		fewest := perFrontend(whole, flows)
		if per := perEndpoint(whole, flows); len(per) < len(fewest) {
			fewest = per
		}
		if len(fewest) > limit {
			fewest = []filter{whole}
		}
		all = append(all, fewest...)
	}
	return all
}

// perFrontend returns a filter for each frontend. That is best if one Service lost many endpoints.
func perFrontend(whole filter, flows []flow.Flow) []filter {
	ends := map[tupleEnd]map[tupleEnd]bool{}
	for _, f := range flows {
		to := tupleEndOf(f.Frontend)
		if ends[to] == nil {
			ends[to] = map[tupleEnd]bool{}
		}
		ends[to][by(f)] = true
	}
	var all []filter
	for to, bys := range ends {
		f := whole
		f.to = to
		if len(bys) == 1 {
			for f.by = range bys {
			}
		}
		all = append(all, f)
	}
	return all
}

// perEndpoint returns a filter for each endpoint. That is best if a pod behind many frontends left.
func perEndpoint(whole filter, flows []flow.Flow) []filter {
	seen := map[tupleEnd]bool{}
	var all []filter
	for _, f := range flows {
		from := by(f)
		if seen[from] {
			continue
		}
		seen[from] = true
		next := whole
		next.by = from
		all = append(all, next)
	}
	return all
}

// by returns the part of the reply's source that the kernel can filter by.
func by(f flow.Flow) tupleEnd {
	if !f.Endpoint.IsValid() {
		return tupleEndOf(f.Frontend)
	}
	return tupleEndOf(f.Endpoint)
}
