package service

import (
	"fmt"
	"maps"
	"slices"
)

// A Builder makes Tables out of Entries and decides which Service has an address that
// several claim. It belongs to one goroutine; the Tables it returns do not.
//
// The result depends on the entries alone, never on the order in which they came.
type Builder struct {
	table *Table
	// Entries as compiled that differ from the table's: those in changed are newer than the
	// table (nil: deleted), of those in complete the table has only the frontends that no
	// older Service has.
	changed, complete map[Name]*Entry
	claimant          map[packedKey]*Entry   // the only entry that asks for a key, or one of several
	conflicts         map[packedKey][]*Entry // all entries that ask for a key, where they are several
	unresolved        map[Name]struct{}      // to be resolved for the next Table
	checks            map[Name]HealthCheck
}

// A packedKey is a Key in less memory, without a pointer for the garbage collector.
type packedKey struct {
	addr  [16]byte
	port  uint16
	proto Proto
}

func (f *Frontend) packedKey() packedKey {
	return packedKey{f.Addr.Addr().As16(), f.Addr.Port(), f.Proto}
}

// NewBuilder returns a Builder whose table is empty.
func NewBuilder() *Builder {
	return &Builder{
		table:      &Table{},
		changed:    map[Name]*Entry{},
		complete:   map[Name]*Entry{},
		claimant:   map[packedKey]*Entry{},
		conflicts:  map[packedKey][]*Entry{},
		unresolved: map[Name]struct{}{},
		checks:     map[Name]HealthCheck{},
	}
}

// entry returns the entry of that name as it was set, nil if there is none.
func (b *Builder) entry(n Name) *Entry {
	if e, ok := b.changed[n]; ok {
		return e
	}
	if e := b.complete[n]; e != nil {
		return e
	}
	return b.table.Entry(n)
}

// Set replaces the entry of the same name.
func (b *Builder) Set(e *Entry) {
	b.withdraw(e.Name)
	b.changed[e.Name] = e
	b.unresolved[e.Name] = struct{}{}
	for _, f := range e.Frontends {
		k := f.packedKey()
		switch other := b.claimant[k]; {
		case other == nil:
			b.claimant[k] = e
			continue
		case b.conflicts[k] == nil:
			b.conflicts[k] = []*Entry{other}
		}
		b.markConflict(k)
		b.conflicts[k] = append(b.conflicts[k], e)
	}
}

// Delete removes the entry of that name, if there is one.
func (b *Builder) Delete(n Name) {
	b.withdraw(n)
	b.changed[n] = nil
	b.unresolved[n] = struct{}{}
}

// withdraw takes back all that the entry of that name asks for.
func (b *Builder) withdraw(n Name) {
	e := b.entry(n)
	if e == nil {
		return
	}
	for _, f := range e.Frontends {
		k := f.packedKey()
		rest := slices.DeleteFunc(b.conflicts[k], func(o *Entry) bool { return o == e })
		if len(rest) == 0 {
			delete(b.claimant, k)
			continue
		}
		b.claimant[k], b.conflicts[k] = rest[0], rest
		b.markConflict(k)
		if len(rest) == 1 {
			delete(b.conflicts, k)
		}
	}
}

// markConflict marks all entries that ask for k: another one may have it now.
func (b *Builder) markConflict(k packedKey) {
	for _, e := range b.conflicts[k] {
		b.unresolved[e.Name] = struct{}{}
	}
}

// Table returns the table of all entries set so far.
func (b *Builder) Table(s Settings) *Table {
	resolved := make(map[Name]*Entry, len(b.unresolved))
	for n := range b.unresolved {
		compiled := b.entry(n)
		resolved[n] = b.resolve(compiled)
		if resolved[n] == compiled {
			delete(b.complete, n)
		} else {
			b.complete[n] = compiled
		}
	}
	// New maps: one that was large once keeps its memory.
	b.changed, b.unresolved = map[Name]*Entry{}, map[Name]struct{}{}
	b.table = b.table.with(resolved)
	b.table.Settings = s // with made a copy, to which nothing else points yet
	b.health(resolved)
	return b.table
}

// health brings the table's health checks up to date. Few Services have one.
func (b *Builder) health(changed map[Name]*Entry) {
	same := true
	for n, e := range changed {
		var is HealthCheck
		if e != nil && e.Health != nil {
			is = *e.Health
		}
		if is == b.checks[n] {
			continue
		}
		same = false
		if is.Port == 0 {
			delete(b.checks, n)
		} else {
			b.checks[n] = is
		}
	}
	if same {
		return
	}
	b.table.HealthChecks = slices.SortedFunc(maps.Values(b.checks), func(x, y HealthCheck) int {
		return x.Service.Compare(y.Service)
	})
}

// resolve returns e without the frontends that an older Service has.
func (b *Builder) resolve(e *Entry) *Entry {
	if e == nil {
		return nil
	}
	lost := func(f *Frontend) *Entry {
		for _, o := range b.conflicts[f.packedKey()] {
			if o.before(e) {
				return o
			}
		}
		return nil
	}
	if !slices.ContainsFunc(e.Frontends, func(f *Frontend) bool { return lost(f) != nil }) {
		return e
	}
	kept := &Entry{Name: e.Name, Created: e.Created, Problems: slices.Clip(e.Problems), Health: e.Health, slices: e.slices}
	for _, f := range e.Frontends {
		if o := lost(f); o != nil {
			kept.Problems = append(kept.Problems, Problem{"AddressInUse",
				fmt.Sprintf("%v belongs to the older Service %v; it is left out here", f.Key(), o.Name)})
			continue
		}
		kept.Frontends = append(kept.Frontends, f)
	}
	return kept
}

// before reports whether e has what both e and o ask for.
func (e *Entry) before(o *Entry) bool {
	if e.Created != o.Created {
		return e.Created < o.Created
	}
	return e.Name.Compare(o.Name) < 0
}
