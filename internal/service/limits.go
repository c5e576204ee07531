package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Limits bound the work of a node for one Service and for one namespace, so that one pass of the loop can carry a
// Service at the limits. Parts beyond a limit are left out and reported as a Problem. 0 means no limit.
type Limits struct {
	Ports             int // of a Service
	ExternalAddresses int // of a Service: external IPs and load balancers'
	// Endpoints bounds a Service's endpoints times its ports, because each port has its own list.
	Endpoints int
	// Slots bounds the slots of all lists of a Service. Each frontend has a list, with policy Local two lists. An
	// endpoint has one slot in a list, with weights as many slots as its share; a Maglev list is the whole table.
	// Kernel modes write an element for each slot.
	Slots int
	// SourceRanges bounds a Service's loadBalancerSourceRanges times the frontends that respect them.
	SourceRanges int
	Frontends    int // of a Service: ports times addresses, with NodePorts
	// NamespaceFrontends bounds the frontends of all Services of a namespace. The oldest Services have theirs.
	NamespaceFrontends int
}

// DefaultLimits returns limits that one pass of the loop can carry. An nftables element costs about 2 µs, and removing
// n source ranges costs the kernel n².
func DefaultLimits() Limits {
	return Limits{Ports: 5000, ExternalAddresses: 500, Endpoints: 10_000, Slots: 40_000, SourceRanges: 1000, Frontends: 10_000, NamespaceFrontends: 100_000}
}

// limitNames are the names of the limits in --service-limits.
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
			return fmt.Errorf("%s=%q is not a number [0 means no limit]", name, value)
		}
		*field = int(n)
	}
	return nil
}

// String returns the limits in the form that Parse accepts.
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

// limitEndpoints returns the slices with the endpoints that count for each of n ports. Endpoints that are ready or on
// this node come before others. The cost does not depend on n.
func (c *compilation) limitEndpoints(eps []*Slice, n int) []*Slice {
	total := 0
	for _, s := range eps {
		total += len(s.Endpoints)
	}
	most, limit := total, c.facts.Limits.Endpoints
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
	// With two families, each has half of the limit.
	left := map[bool]int{true: most, false: most}
	if families := len(c.families()); families > 1 {
		left = map[bool]int{true: max(most/2, 1), false: max(most/2, 1)}
	}
	for rank := range 3 {
		for i, s := range eps {
			for k := range s.Endpoints {
				e := &s.Endpoints[k]
				if !chosen[i][k] && e.rank(c.facts.Name) == rank && left[e.Addr.Is4()] > 0 {
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

// rank orders endpoints if not all can count: ready endpoints on the node, other ready endpoints, the rest.
func (e *SliceEndpoint) rank(node string) int {
	switch {
	case e.Ready && e.Node == node:
		return 0
	case e.Ready:
		return 1
	}
	return 2
}

// NoClients returns a source range of a family that no client is in.
func NoClients(is4 bool) []netip.Prefix {
	if is4 {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32)}
	}
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff, 0x0f}), 128)}
}
