package conntrack

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

// maxDumps is how many filtered dumps of a table with so many entries cost as much as
// one that copies all flows of the protocol to this process. Each dump walks the
// kernel's hash, 10 ms for its usual 262,144 buckets however few entries there are;
// 1,000 entries add 0.2 ms if they are filtered and 2.2 ms if they are copied
// (BenchmarkDump). So it is 1 for a small table, 7 for 100,000 entries, 10 for millions.
func maxDumps(entries int) int { return (50_000 + 11*entries) / (50_000 + entries) }

// A filter is what the kernel is asked for. Zero values are not asked about, except
// family and proto.
type filter struct {
	is4   bool
	proto api.Proto // 0: any
	to    tupleEnd  // the original destination
	by    tupleEnd  // the source of the reply
}

// A tupleEnd is an address or a port, or both, of one end of a flow.
type tupleEnd struct {
	addr netip.Addr
	port uint16
}

func (e tupleEnd) admits(a netip.AddrPort) bool {
	return (!e.addr.IsValid() || e.addr == a.Addr()) && (e.port == 0 || e.port == a.Port())
}

// tupleEndOf returns what the kernel can be asked about a. Of IPv6 addresses it cannot: from
// 5.8 on and still in 6.18 ctnetlink_filter_match_tuple lets through every address but
// the one that was asked for.
func tupleEndOf(a netip.AddrPort) tupleEnd {
	e := tupleEnd{a.Addr(), a.Port()}
	if !a.Addr().Is4() || a.Addr().IsUnspecified() {
		e.addr = netip.Addr{}
	}
	return e
}

// admits reports whether a kernel that understands f could have sent e. Ports are
// looked at by the kernel for TCP and UDP only.
func (f filter) admits(e entry) bool {
	if f.is4 != e.is4() || f.proto != 0 && f.proto != e.orig.proto {
		return false
	}
	if e.orig.proto == api.SCTP {
		f.to.port, f.by.port = 0, 0
	}
	return f.to.admits(e.orig.dst) && f.by.admits(e.reply.src)
}

// plan returns the filters that find all flows, one dump each; more than most for a
// protocol become one that copies all of it. What they find besides is harmless: every
// entry is looked up in the set.
func plan(flows []flow.Flow, most int) []filter {
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
		if len(fewest) > most {
			fewest = []filter{whole}
		}
		all = append(all, fewest...)
	}
	return all
}

// perFrontend asks for the flows of one Frontend after the other: best if a Service
// lost many endpoints.
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

// perEndpoint asks for the flows to one endpoint after the other: best if a pod left
// that was behind many Frontends.
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

// by returns the source of the reply, as far as it is known.
func by(f flow.Flow) tupleEnd {
	if !f.Endpoint.IsValid() {
		return tupleEndOf(f.Frontend)
	}
	return tupleEndOf(f.Endpoint)
}

// merge returns one filter for each family of fs.
func merge(fs []filter) []filter {
	var is4, is6 bool
	for _, f := range fs {
		is4, is6 = is4 || f.is4, is6 || !f.is4
	}
	var all []filter
	if is4 {
		all = append(all, filter{is4: true})
	}
	if is6 {
		all = append(all, filter{})
	}
	return all
}
