package service

import (
	"iter"
	"slices"
)

// A Change is a Frontend that differs between two Tables. Old is nil for a new Frontend, New is nil for a removed
// Frontend.
type Change struct{ Old, New *Frontend }

// Key returns the key of the frontend that changed.
func (c Change) Key() Key {
	if c.New != nil {
		return c.New.Key()
	}
	return c.Old.Key()
}

// Diff returns the changes that turn from into to, sorted by key. If a Builder made to from from, the cost depends only
// on the shards that changed. Settings are not compared: they are a plain value.
func Diff(from, to *Table) []Change {
	all := changed(from, to)
	out := make([]Change, 0, len(all))
	for _, c := range all {
		if !c.Old.Equal(c.New) {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return a.Key().Compare(b.Key()) })
	return out
}

// Touched yields the frontends of all Services that were compiled again between two Tables, in no particular order.
// Unlike Diff it also yields frontends that are Equal, because their Retained endpoints may differ. It costs as much as
// Diff.
func Touched(from, to *Table) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for _, c := range changed(from, to) {
			if !yield(*c) {
				return
			}
		}
	}
}

// changed returns the frontends of all Services that were compiled again. A frontend that both entries share is left
// out.
func changed(from, to *Table) map[Key]*Change {
	changes := map[Key]*Change{}
	at := func(k Key) *Change {
		c := changes[k]
		if c == nil {
			c = &Change{}
			changes[k] = c
		}
		return c
	}
	for c := range entryChanges(from, to) {
		for old, new := range c.frontends() {
			if old == new {
				continue
			}
			if old != nil {
				at(old.Key()).Old = old
			}
			if new != nil {
				at(new.Key()).New = new
			}
		}
	}
	return changes
}

// An entryChange is an entry in two tables; one of them may be nil.
type entryChange struct{ old, new *Entry }

// frontends yields the frontends of both entries in pairs, by key; nil if an entry has no such frontend.
func (c entryChange) frontends() iter.Seq2[*Frontend, *Frontend] {
	return merged(c.old.frontends(), c.new.frontends(), func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
}

// entryChanges yields the entries that differ between two tables.
func entryChanges(from, to *Table) iter.Seq[entryChange] {
	return func(yield func(entryChange) bool) {
		for i := range to.shards {
			if from.shards[i] == to.shards[i] {
				continue
			}
			for old, new := range merged(from.shards[i].all(), to.shards[i].all(), (*Entry).compareName) {
				if old != new && !yield(entryChange{old, new}) {
					return
				}
			}
		}
	}
}

func (e *Entry) compareName(o *Entry) int { return e.Name.Compare(o.Name) }

// merged yields the elements of two sorted lists in pairs, in order; nil if a list lacks the element.
func merged[T any](was, is []*T, compare func(a, b *T) int) iter.Seq2[*T, *T] {
	return func(yield func(old, new *T) bool) {
		for len(was)+len(is) > 0 {
			var old, new *T
			d := 0
			switch {
			case len(is) == 0:
				d = -1
			case len(was) == 0:
				d = 1
			default:
				d = compare(was[0], is[0])
			}
			if d <= 0 {
				old, was = was[0], was[1:]
			}
			if d >= 0 {
				new, is = is[0], is[1:]
			}
			if !yield(old, new) {
				return
			}
		}
	}
}

// frontends returns the frontends of an entry, which may be nil.
func (e *Entry) frontends() []*Frontend {
	if e == nil {
		return nil
	}
	return e.Frontends
}

// Equal reports whether a datapath does the same for f and o. Both may be nil.
func (f *Frontend) Equal(o *Frontend) bool {
	if f == nil || o == nil {
		return f == o
	}
	sameRoute := (*Route).Equal
	if f.Affinity == 0 {
		sameRoute = (*Route).forwardsLike // Local only separates clients with affinity
	}
	return f == o || f.Key() == o.Key() && f.Service == o.Service && f.ClusterIP == o.ClusterIP && f.LoadBalancer == o.LoadBalancer && f.OnNode == o.OnNode && f.Affinity == o.Affinity && f.Balance == o.Balance &&
		slices.Equal(f.Sources, o.Sources) && sameRoute(f.Internal, o.Internal) && sameRoute(f.External, o.External)
}

// Equal reports whether all fields of r and o are equal.
func (r *Route) Equal(o *Route) bool { return r.Local == o.Local && r.forwardsLike(o) }

// forwardsLike reports whether r and o treat the packets of a client without affinity alike.
func (r *Route) forwardsLike(o *Route) bool {
	return r == o || r.Action == o.Action && r.Masquerade == o.Masquerade && slices.Equal(r.Endpoints, o.Endpoints)
}

// Equal reports whether s and o have the same elements, in any order.
func (s Settings) Equal(o Settings) bool {
	return samePrefixes(s.Pods, o.Pods) && samePrefixes(s.NodePorts, o.NodePorts) && slices.Equal(s.PodInterfaces, o.PodInterfaces) &&
		samePrefixes(s.ServiceCIDRs, o.ServiceCIDRs)
}

// Differing yields the endpoints that differ between two lists, which are sorted by address. One of the two is nil if
// only the other list has the address.
func Differing(was, is []Endpoint) iter.Seq2[*Endpoint, *Endpoint] {
	return func(yield func(old, new *Endpoint) bool) {
		for i, k := 0, 0; i < len(was) || k < len(is); {
			var old, new *Endpoint
			d := 0
			switch {
			case k == len(is):
				d = -1
			case i == len(was):
				d = 1
			default:
				d = was[i].Addr.Compare(is[k].Addr)
			}
			if d <= 0 {
				old = &was[i]
				i++
			}
			if d >= 0 {
				new = &is[k]
				k++
			}
			if (old == nil || new == nil || *old != *new) && !yield(old, new) {
				return
			}
		}
	}
}
