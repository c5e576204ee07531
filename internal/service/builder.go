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
	table *Table
	// Entries as compiled, with all that they claim: those of which the table says
	// something else, because they are newer (nil: deleted) or because they lost a part.
	fresh, whole map[Name]*Entry
	owner        map[claim]*Entry   // the only one who claims a key, or any of the rivals
	rivals       map[claim][]*Entry // all who claim a key, where they are several
	again        map[Name]struct{}  // must be settled again at the next Table
	checks       map[Name]HealthCheck
}

// A claim is a Key in less memory, in which the garbage collector has nothing to look for.
type claim struct {
	addr  [16]byte
	port  uint16
	proto Proto
}

func (f *Frontend) claim() claim { return claim{f.Addr.Addr().As16(), f.Addr.Port(), f.Proto} }

// NewBuilder returns a Builder whose table is empty.
func NewBuilder() *Builder {
	return &Builder{
		table:  &Table{},
		fresh:  map[Name]*Entry{},
		whole:  map[Name]*Entry{},
		owner:  map[claim]*Entry{},
		rivals: map[claim][]*Entry{},
		again:  map[Name]struct{}{},
		checks: map[Name]HealthCheck{},
	}
}

// entry returns the entry of that name as it was set, nil if there is none.
func (b *Builder) entry(n Name) *Entry {
	if e, ok := b.fresh[n]; ok {
		return e
	}
	if e := b.whole[n]; e != nil {
		return e
	}
	return b.table.Entry(n)
}

// Set replaces the entry of the same name.
func (b *Builder) Set(e *Entry) {
	b.release(e.Name)
	b.fresh[e.Name] = e
	b.again[e.Name] = struct{}{}
	for _, f := range e.Frontends {
		c := f.claim()
		switch owner := b.owner[c]; {
		case owner == nil:
			b.owner[c] = e
			continue
		case b.rivals[c] == nil:
			b.rivals[c] = []*Entry{owner}
		}
		b.contest(c)
		b.rivals[c] = append(b.rivals[c], e)
	}
}

// Delete removes the entry of that name, if there is one.
func (b *Builder) Delete(n Name) {
	b.release(n)
	b.fresh[n] = nil
	b.again[n] = struct{}{}
}

// release takes back all that the entry of that name claims.
func (b *Builder) release(n Name) {
	e := b.entry(n)
	if e == nil {
		return
	}
	for _, f := range e.Frontends {
		c := f.claim()
		rest := slices.DeleteFunc(b.rivals[c], func(o *Entry) bool { return o == e })
		if len(rest) == 0 {
			delete(b.owner, c)
			continue
		}
		b.owner[c], b.rivals[c] = rest[0], rest
		b.contest(c)
		if len(rest) == 1 {
			delete(b.rivals, c)
		}
	}
}

// contest marks everyone who claims c together with others: the winner may be another
// now.
func (b *Builder) contest(c claim) {
	for _, e := range b.rivals[c] {
		b.again[e.Name] = struct{}{}
	}
}

// Table returns the table of all entries set so far.
func (b *Builder) Table(s Settings) *Table {
	changed := make(map[Name]*Entry, len(b.again))
	for n := range b.again {
		whole := b.entry(n)
		changed[n] = b.settle(whole)
		if changed[n] == whole {
			delete(b.whole, n)
		} else {
			b.whole[n] = whole
		}
	}
	// New maps, because one that was large once stays so.
	b.fresh, b.again = map[Name]*Entry{}, map[Name]struct{}{}
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

// settle returns e without the frontends that an older Service has.
func (b *Builder) settle(e *Entry) *Entry {
	if e == nil {
		return nil
	}
	lost := func(f *Frontend) *Entry {
		for _, o := range b.rivals[f.claim()] {
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

// before reports whether e has what both e and o claim.
func (e *Entry) before(o *Entry) bool {
	if e.Created != o.Created {
		return e.Created < o.Created
	}
	return e.Name.Compare(o.Name) < 0
}
