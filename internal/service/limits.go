package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Limits bound what one Service, and all of a namespace, can ask of a node: the API allows
// far more than a node can carry. What exceeds a limit is left out and reported as a
// Problem. A limit of 0 is none.
type Limits struct {
	Ports             int // of a Service
	ExternalAddresses int // of a Service: external IPs and load balancers'
	// Endpoints bounds a Service's endpoints times its ports: each port has its own list.
	Endpoints int
	// Slots bounds the slots of a Service's lists, of which each frontend has one, with policy Local two: one
	// for each endpoint, with weights as many as its share, and for Maglev its table. Modes in the kernel have an
	// element for each.
	Slots int
	// SourceRanges bounds a Service's loadBalancerSourceRanges times the frontends that they
	// hold for.
	SourceRanges int
	Frontends    int // of a Service: ports times addresses, with NodePorts
	// NamespaceFrontends bounds the frontends of all Services of a namespace; the oldest have
	// them.
	NamespaceFrontends int
}

// DefaultLimits returns limits that no Service which people wrote by hand reaches.
func DefaultLimits() Limits {
	return Limits{Ports: 5000, ExternalAddresses: 500, Endpoints: 10_000, Slots: 40_000, SourceRanges: 1000, Frontends: 10_000, NamespaceFrontends: 100_000}
}

// The names of limits, as --service-limits has them.
var limitNames = []string{"ports", "external-addresses", "endpoints", "slots", "source-ranges", "frontends", "namespace-frontends"}

func (l *Limits) field(name string) *int {
	all := []*int{&l.Ports, &l.ExternalAddresses, &l.Endpoints, &l.Slots, &l.SourceRanges, &l.Frontends, &l.NamespaceFrontends}
	if i := slices.Index(limitNames, name); i >= 0 {
		return all[i]
	}
	return nil
}

// Parse changes the limits that text names: "ports=100,frontends=0".
func (l *Limits) Parse(text string) error {
	for _, one := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(one), "=")
		field := l.field(name)
		if !ok || field == nil {
			return fmt.Errorf("%q is not LIMIT=NUMBER [the limits are %s]", one, strings.Join(limitNames, ", "))
		}
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fmt.Errorf("%s=%q: must be a number, 0 for no limit", name, value)
		}
		*field = int(n)
	}
	return nil
}

// String returns the limits as Parse reads them.
func (l Limits) String() string {
	var texts []string
	for _, name := range limitNames {
		texts = append(texts, fmt.Sprintf("%s=%d", name, *l.field(name)))
	}
	return strings.Join(texts, ",")
}

// exceeds reports whether n is more than a limit.
func exceeds(n, limit int) bool { return limit > 0 && n > limit }

const limitAdvice = "[split the Service; --service-limits of the agents sets the limit]"

// limitEndpoints returns the slices with as many endpoints as n ports and their lists may have: those that
// are ready or on this node before others. It costs the same whatever n is.
func (c *compilation) limitEndpoints(eps []*Slice, n int) []*Slice {
	total := 0
	for _, s := range eps {
		total += len(s.Endpoints)
	}
	most, limit := total, c.node.Limits.Endpoints
	if exceeds(total*n, limit) {
		most = max(limit/n, 1)
		c.problem("TooManyEndpoints", "%d endpoints for each of %d ports are more than %d in all; %d of them count %s", total, n, limit, most, limitAdvice)
	}
	if most = c.limitSlots(most); most == total {
		return eps
	}
	eps = slices.SortedFunc(slices.Values(eps), func(a, b *Slice) int { return a.Name.Compare(b.Name) })
	kept := make([]*Slice, len(eps))
	chosen := make([][]bool, len(eps))
	for i, s := range eps {
		chosen[i] = make([]bool, len(s.Endpoints))
	}
	// Both families share the limit, each for itself if there are two.
	left := map[bool]int{true: most, false: most}
	if families := len(c.families()); families > 1 {
		left = map[bool]int{true: max(most/2, 1), false: max(most/2, 1)}
	}
	for rank := range 3 {
		for i, s := range eps {
			for k := range s.Endpoints {
				e := &s.Endpoints[k]
				if !chosen[i][k] && e.rank(c.node.Name) == rank && left[e.Addr.Is4()] > 0 {
					chosen[i][k] = true
					left[e.Addr.Is4()]--
				}
			}
		}
	}
	for i, s := range eps {
		some := *s
		some.Endpoints = nil
		for k, ok := range chosen[i] {
			if ok {
				some.Endpoints = append(some.Endpoints, s.Endpoints[k])
			}
		}
		kept[i] = &some
	}
	return slices.DeleteFunc(kept, func(s *Slice) bool { return len(s.Endpoints) == 0 })
}

// rank orders endpoints where not all can count: ready ones on the node, ready ones,
// others.
func (e *SliceEndpoint) rank(node string) int {
	switch {
	case e.Ready && e.Node == node:
		return 0
	case e.Ready:
		return 1
	}
	return 2
}

// NoClients returns ranges that no client of a family is in: sources that let nobody in.
func NoClients(is4 bool) []netip.Prefix {
	if is4 {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32)}
	}
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff, 0x0f}), 128)}
}
