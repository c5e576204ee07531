package service

import (
	"iter"
	"slices"
)

// A Change is a Frontend that differs between two Tables. Old is nil for one that
// was added, New for one that was removed.
type Change struct{ Old, New *Frontend }

// Key returns the key of the frontend that changed.
func (c Change) Key() Key {
	if c.New != nil {
		return c.New.Key()
	}
	return c.Old.Key()
}

// Diff returns what must change in from to make it to, sorted by key. Its cost
// follows the number of changed shards, if to was made from from by a Builder.
// Settings are not compared: they are a plain value.
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

// Touched yields the frontends of all Services that were compiled anew between two Tables,
// in no particular order. Unlike Diff it has those that Equal calls equal as well: what
// they retain may differ, which no datapath needs to know. Its cost is that of Diff, and
// frontends that both tables share are left out.
func Touched(from, to *Table) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for _, c := range changed(from, to) {
			if !yield(*c) {
				return
			}
		}
	}
}

// changed returns the frontends of the Services that were compiled anew. A frontend that both entries share is left out.
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

// frontends yields the frontends of both entries side by side, by key.
func (c entryChange) frontends() iter.Seq2[*Frontend, *Frontend] {
	return merged(c.old.frontends(), c.new.frontends(), func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
}

// entryChanges yields all entries that are not the same in both tables.
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

// merged yields what two sorted lists hold, in order, side by side: nil for what is in the
// other list only.
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

// frontends returns those of an entry that may be nil.
func (e *Entry) frontends() []*Frontend {
	if e == nil {
		return nil
	}
	return e.Frontends
}

// Equal reports whether f and o make a datapath do the same. Both may be nil.
func (f *Frontend) Equal(o *Frontend) bool {
	if f == nil || o == nil {
		return f == o
	}
	sameRoute := (*Route).Equal
	if f.Affinity == 0 {
		sameRoute = (*Route).forwardsLike // Local keeps clients' affinity apart, and there is none
	}
	return f == o || f.Key() == o.Key() && f.Service == o.Service && f.ClusterIP == o.ClusterIP && f.LoadBalancer == o.LoadBalancer && f.Affinity == o.Affinity && f.Balance == o.Balance &&
		slices.Equal(f.Sources, o.Sources) && sameRoute(f.Internal, o.Internal) && sameRoute(f.External, o.External)
}

// Equal reports whether r and o are the same in every field.
func (r *Route) Equal(o *Route) bool { return r.Local == o.Local && r.forwardsLike(o) }

// forwardsLike reports whether r and o send a packet of a client without affinity the
// same way.
func (r *Route) forwardsLike(o *Route) bool {
	return r == o || r.Action == o.Action && r.Masquerade == o.Masquerade && slices.Equal(r.Endpoints, o.Endpoints)
}

// Equal reports whether s and o hold the same, in whatever order.
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
