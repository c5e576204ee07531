package gateway

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// The limits of one namespace on one host of one listener. A request walks through regular expressions and through the
// matches of one path one after the other, so these are the parts that make another tenant's requests slow.
const (
	maxPatterns = 100 // matches with a regular expression of the path
	maxSamePath = 200 // matches of one path, which differ in method, headers or query
)

// reasonTooMany is the reason of the Problem of a route that exceeds a limit.
const reasonTooMany = "TooManyMatches"

// limit removes the entries that exceed a namespace's limits. The lists are sorted, so the weakest entries are removed. over
// has the number of removed entries by route.
func (h *host) limit() (over map[Ref]int) {
	h.patterns = limitList(h.patterns, maxPatterns, &over)
	for _, lists := range []map[string][]*entry{h.exact, h.prefixes} {
		for path, list := range lists {
			if len(list) > maxSamePath {
				lists[path] = limitList(list, maxSamePath, &over)
			}
		}
	}
	return over
}

func limitList(list []*entry, most int, over *map[Ref]int) (kept []*entry) {
	if len(list) <= most {
		return list
	}
	count := map[string]int{}
	for _, e := range list {
		if count[e.rule.Route.Namespace]++; count[e.rule.Route.Namespace] <= most {
			kept = append(kept, e)
			continue
		}
		if *over == nil {
			*over = map[Ref]int{}
		}
		(*over)[e.rule.Route]++
	}
	return kept
}

// setOver records what a host has left out, and returns the routes whose report changes by it.
func (x *attachments) setOver(k hostKey, over map[Ref]int) (changed []Ref) {
	for ref := range x.over[k] {
		changed = append(changed, ref)
	}
	for ref := range over {
		changed = append(changed, ref)
	}
	if over == nil {
		delete(x.over, k)
	} else {
		x.over[k] = over
	}
	return changed
}

// limited adds to a route's report what exceeds the limits.
func (c *Compiler) limited(unit *routeUnit) Report {
	r := unit.report
	if len(c.attached.over) == 0 {
		return r
	}
	for _, a := range unit.attached {
		for _, host := range a.hosts {
			n := c.attached.over[hostKey{a.listener.key(), host}][unit.ref]
			if n == 0 {
				continue
			}
			text := fmt.Sprintf("%d matches of host %s do not count: a namespace has at most %d matches with a regular expression and %d of one path on a host",
				n, hostText(host), maxPatterns, maxSamePath)
			r.Problems = api.AddProblem(slices.Clip(r.Problems), reasonTooMany, "%s [use prefixes, or fewer routes]", text)
			r.Parents = slices.Clone(r.Parents)
			for i := range r.Parents {
				cs := conditions(slices.Clone(r.Parents[i].Conditions))
				cs.set(partiallyInvalid, true, reasonUnsupportedValue, text)
				r.Parents[i].Conditions = cs
			}
		}
	}
	return r
}
