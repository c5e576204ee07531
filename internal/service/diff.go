package service

import "slices"

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

// changed returns the frontends of all entries that are not the same in both tables.
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
	for i := range to.shards {
		if from.shards[i] == to.shards[i] {
			continue
		}
		was, is := from.shards[i].all(), to.shards[i].all()
		for name, e := range was {
			if is[name] == e {
				continue
			}
			for _, f := range e.Frontends {
				at(f.Key()).Old = f
			}
		}
		for name, e := range is {
			if was[name] == e {
				continue
			}
			for _, f := range e.Frontends {
				at(f.Key()).New = f
			}
		}
	}
	return changes
}

// Equal reports whether f and o make a datapath do the same. Both may be nil.
func (f *Frontend) Equal(o *Frontend) bool {
	if f == nil || o == nil {
		return f == o
	}
	return f == o || f.Key() == o.Key() && f.Service == o.Service && f.Reserved == o.Reserved && f.Affinity == o.Affinity && f.Balance == o.Balance &&
		slices.Equal(f.Sources, o.Sources) && f.Inside.Equal(o.Inside) && f.Outside.Equal(o.Outside)
}

// Equal reports whether r and o send packets the same way.
func (r *Route) Equal(o *Route) bool {
	return r == o || r.Action == o.Action && r.Masquerade == o.Masquerade && slices.Equal(r.Endpoints, o.Endpoints)
}

// Equal reports whether s and o hold the same, in whatever order.
func (s Settings) Equal(o Settings) bool {
	return samePrefixes(s.Pods, o.Pods) && samePrefixes(s.NodePorts, o.NodePorts) && slices.Equal(s.PodInterfaces, o.PodInterfaces) &&
		samePrefixes(s.ServiceCIDRs, o.ServiceCIDRs)
}
