package service

import (
	"fmt"
	"maps"
	"slices"
)

// A Builder makes Tables out of Entries and settles who has an address that several
// Services claim. It belongs to one goroutine; the Tables it returns do not.
//
// The result depends on the entries alone, never on the order in which they came.
type Builder struct {
	table  *Table
	whole  map[Name]*Entry   // as compiled, with all that they claim
	claims map[Key][]*Entry  // who claims a key; nearly always one
	again  map[Name]struct{} // must be settled again at the next Table
	checks map[Name]HealthCheck
}

// NewBuilder returns a Builder whose table is empty.
func NewBuilder() *Builder {
	return &Builder{
		table:  &Table{},
		whole:  map[Name]*Entry{},
		claims: map[Key][]*Entry{},
		again:  map[Name]struct{}{},
		checks: map[Name]HealthCheck{},
	}
}

// Set replaces the entry of the same name.
func (b *Builder) Set(e *Entry) {
	b.release(e.Name)
	b.whole[e.Name] = e
	b.again[e.Name] = struct{}{}
	for _, f := range e.Frontends {
		b.contest(f.Key())
		b.claims[f.Key()] = append(b.claims[f.Key()], e)
	}
}

// Delete removes the entry of that name, if there is one.
func (b *Builder) Delete(n Name) {
	b.release(n)
	delete(b.whole, n)
	b.again[n] = struct{}{}
}

// release takes back all that the entry of that name claims.
func (b *Builder) release(n Name) {
	e := b.whole[n]
	if e == nil {
		return
	}
	for _, f := range e.Frontends {
		k := f.Key()
		rest := slices.DeleteFunc(b.claims[k], func(o *Entry) bool { return o == e })
		if len(rest) == 0 {
			delete(b.claims, k)
			continue
		}
		b.claims[k] = rest
		b.contest(k)
	}
}

// contest marks everyone who claims k: the winner may be another now.
func (b *Builder) contest(k Key) {
	for _, e := range b.claims[k] {
		b.again[e.Name] = struct{}{}
	}
}

// Table returns the table of all entries set so far.
func (b *Builder) Table(s Settings) *Table {
	changed := make(map[Name]*Entry, len(b.again))
	for n := range b.again {
		changed[n] = b.settle(b.whole[n])
	}
	clear(b.again)
	b.table = b.table.with(changed)
	b.table.Settings = s // the copy that with made is still ours
	b.health(changed)
	return b.table
}

// health brings the table's health checks up to date. Few Services have one.
func (b *Builder) health(changed map[Name]*Entry) {
	same := true
	for n, e := range changed {
		var is HealthCheck
		if e != nil {
			is = e.Health
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

// settle returns e without the frontends that an older Service has.
func (b *Builder) settle(e *Entry) *Entry {
	if e == nil {
		return nil
	}
	lost := func(f *Frontend) *Entry {
		for _, o := range b.claims[f.Key()] {
			if o.before(e) {
				return o
			}
		}
		return nil
	}
	if !slices.ContainsFunc(e.Frontends, func(f *Frontend) bool { return lost(f) != nil }) {
		return e
	}
	kept := &Entry{Name: e.Name, Created: e.Created, Problems: slices.Clip(e.Problems), Health: e.Health}
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

// before reports whether e has what both e and o claim.
func (e *Entry) before(o *Entry) bool {
	if e.Created != o.Created {
		return e.Created < o.Created
	}
	return e.Name.Compare(o.Name) < 0
}
