package networkpolicy

import "net/netip"

// A Change is how something was, and how it is.
type Change[V any] struct{ From, To V }

// Changes are the differences between two tables. Class 0 means that the address has no class.
type Changes struct {
	Classes   map[netip.Addr]Change[Class]
	Networks  bool // read Table.Networks
	Ports     map[PodPort]Change[Class]
	Views     [2]map[netip.Addr]Change[View]
	Prefixes  map[ViewPrefix]Change[Class]
	Isolated  [2]map[netip.Addr]Change[bool]
	Cluster   [2]map[netip.Addr]Change[bool]
	Grants    [2]map[Target]Change[[]Segment]
	Rules     map[RuleID]Change[RuleName] // the zero name: none
	Sandboxes map[netip.Addr]Change[Sandbox]
	// Revoked: a packet that was allowed may be denied now.
	Revoked bool
}

func newChanges() *Changes {
	c := &Changes{Classes: map[netip.Addr]Change[Class]{}, Rules: map[RuleID]Change[RuleName]{}, Sandboxes: map[netip.Addr]Change[Sandbox]{},
		Ports: map[PodPort]Change[Class]{}, Prefixes: map[ViewPrefix]Change[Class]{}}
	for d := range c.Isolated {
		c.Isolated[d], c.Cluster[d] = map[netip.Addr]Change[bool]{}, map[netip.Addr]Change[bool]{}
		c.Views[d], c.Grants[d] = map[netip.Addr]Change[View]{}, map[Target]Change[[]Segment]{}
	}
	return c
}

// note records a change of one element. An element that returns to its first value is no change.
func note[K comparable, V any](m map[K]Change[V], k K, from, to V, equal func(a, b V) bool) {
	if c, ok := m[k]; ok {
		from = c.From
	}
	if equal(from, to) {
		delete(m, k)
		return
	}
	m[k] = Change[V]{from, to}
}

func equalValues[V comparable](a, b V) bool { return a == b }
