package service

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Builder makes Tables out of Entries. If several Services claim an address, it decides which Service has it:
//
//   - A ClusterIP belongs to its Service alone, even if an older Service claims it.
//   - Every other address and port belongs to the oldest Service.
//
// The Table depends on the entries, not on their order. A Builder belongs to one goroutine; its Tables do not.
type Builder struct {
	table *Table
	// changed are compiled entries that are newer than the table (nil: deleted). complete are compiled entries of which
	// the table has only some frontends, because other Services have the rest.
	changed, complete map[api.Name]*Entry
	keys              claims[packedKey]     // claims of frontends
	clusterIPs        claims[address]       // claims of ClusterIPs
	externals         claims[address]       // claims of addresses for clients outside the cluster
	unresolved        map[api.Name]struct{} // to be resolved before the next Table
	checks            map[api.Name]HealthCheck
	limit             int // of a namespace's frontends; 0: no limit
	namespaces        map[string]*namespace
	aimed             map[packedKey]map[api.Name]struct{} // Services with a suspect at a key; see loops
	crowded           map[string]struct{}                 // namespaces that ration must examine
}

// An address is a netip.Addr that needs less memory and has no pointer for the garbage collector.
type address [16]byte

// A packedKey is a Key that needs less memory.
type packedKey struct {
	addr  address
	port  uint16
	proto api.Proto
}

func (f *Frontend) packedKey() packedKey { return f.Key().packed() }

func (k Key) packed() packedKey { return packedKey{k.Addr.Addr().As16(), k.Addr.Port(), k.Proto} }

// NewBuilder returns a Builder with an empty table.
func NewBuilder() *Builder {
	older := func(_ address, a, b *Entry) bool { return compareAge(a, b) < 0 }
	return &Builder{
		table:      &Table{},
		changed:    map[api.Name]*Entry{},
		complete:   map[api.Name]*Entry{},
		keys:       newClaims(hasBefore),
		clusterIPs: newClaims(older),
		externals:  newClaims(older),
		unresolved: map[api.Name]struct{}{},
		checks:     map[api.Name]HealthCheck{},
		namespaces: map[string]*namespace{},
		crowded:    map[string]struct{}{},
		aimed:      map[packedKey]map[api.Name]struct{}{},
	}
}

// Limit sets the limit NamespaceFrontends. It must be called before the first Set. It returns b.
func (b *Builder) Limit(l Limits) *Builder {
	b.limit = l.NamespaceFrontends
	return b
}

// entry returns the entry of that name as it was set; nil if there is none.
func (b *Builder) entry(n api.Name) *Entry {
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
	was := b.entry(e.Name)
	b.changed[e.Name] = e
	b.unresolved[e.Name] = struct{}{}
	for i, f := range e.Frontends {
		if k := f.packedKey(); b.keys.set(k, e) {
			b.keys.each(k, b.mark)
			b.markAimed(k)
		}
		if i == 0 || f.Addr.Addr() != e.Frontends[i-1].Addr.Addr() {
			b.claimAddress(f, e)
		}
	}
	b.withdraw(was, e)
	b.aims(was, e)
	b.count(was, e)
}

// Delete removes the entry of that name, if there is one.
func (b *Builder) Delete(n api.Name) {
	was := b.entry(n)
	b.changed[n] = nil
	b.unresolved[n] = struct{}{}
	if was != nil {
		b.withdraw(was, nil)
		b.aims(was, nil)
		b.count(was, nil)
	}
}

// claimAddress notes that e claims the address of f, one of its frontends.
func (b *Builder) claimAddress(f *Frontend, e *Entry) {
	switch a := address(f.Addr.Addr().As16()); {
	case f.NodePort():
	case !f.ClusterIP:
		b.externals.set(a, e)
	case b.clusterIPs.set(a, e):
		b.externals.each(a, b.mark)
	}
}

// withdraw removes the claims of an entry that its successor does not have. Both may be nil.
func (b *Builder) withdraw(was, now *Entry) {
	for i, f := range was.frontends() {
		if now.frontend(f.Key()) == nil {
			if k := f.packedKey(); b.keys.remove(k, was.Name) {
				b.keys.each(k, b.mark)
				b.markAimed(k)
			}
		}
		addr := f.Addr.Addr()
		if i > 0 && addr == was.Frontends[i-1].Addr.Addr() || f.NodePort() {
			continue
		}
		has := now.at(addr)
		if !f.ClusterIP && (has == nil || has.ClusterIP) {
			b.externals.remove(addr.As16(), was.Name)
		}
		if f.ClusterIP && (has == nil || !has.ClusterIP) && b.clusterIPs.remove(addr.As16(), was.Name) {
			b.externals.each(addr.As16(), b.mark)
		}
	}
}

// mark makes the next Table resolve the entry of that name again.
func (b *Builder) mark(n api.Name) { b.unresolved[n] = struct{}{} }

// Table returns the table of all current entries.
func (b *Builder) Table(s Settings) *Table {
	b.ration()
	resolved := make(map[api.Name]*Entry, len(b.unresolved))
	for n := range b.unresolved {
		compiled := b.entry(n)
		resolved[n] = b.resolve(compiled)
		if resolved[n] == compiled {
			delete(b.complete, n)
		} else {
			b.complete[n] = compiled
		}
	}
	// A map keeps its memory after it was large once, so make new maps.
	b.changed, b.unresolved = map[api.Name]*Entry{}, map[api.Name]struct{}{}
	b.table = b.table.with(resolved)
	b.table.Settings = s // nobody else has the copy that with made
	b.health(resolved)
	return b.table
}

// health updates the table's health checks. Few Services have one.
func (b *Builder) health(changed map[api.Name]*Entry) {
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

// resolve returns e without the frontends that belong to other Services. An entry beyond the limit of its namespace
// loses all frontends.
func (b *Builder) resolve(e *Entry) *Entry {
	if e == nil {
		return nil
	}
	if b.crowdedOut(e) {
		kept := *e
		kept.Frontends = nil
		kept.Problems = api.AddProblem(slices.Clip(e.Problems), "TooManyFrontends",
			"the Services of the namespace have more than %d frontends (ports times addresses); all of this one are left out, as older ones have them %s", b.limit, limitAdvice)
		return &kept
	}
	e = b.withoutLoops(e)
	if !slices.ContainsFunc(e.Frontends, func(f *Frontend) bool { return b.rival(e, f) != nil }) {
		return e
	}
	kept := *e
	kept.Frontends, kept.Problems = nil, slices.Clip(e.Problems)
	left := func(format string, args ...any) {
		kept.Problems = api.AddProblem(kept.Problems, "AddressInUse", format, args...)
	}
	for _, f := range e.Frontends {
		switch o := b.rival(e, f); {
		case o == nil:
			kept.Frontends = append(kept.Frontends, f)
		case o.ownsClusterIP(f.Addr.Addr()) && !f.ClusterIP:
			left("%v is left out: the address is the ClusterIP of Service %v, and no other Service can have it [choose another address]", f.Key(), o.Name)
		default:
			left("%v belongs to Service %v, which is older; it is left out here", f.Key(), o.Name)
		}
	}
	return &kept
}

// rival returns the entry to which the address of f, a frontend of e, belongs; nil if it belongs to e.
func (b *Builder) rival(e *Entry, f *Frontend) *Entry {
	if !f.ClusterIP && !f.NodePort() {
		if o := b.clusterIPs.owners[f.Addr.Addr().As16()]; o != nil && o.Name != e.Name {
			return o
		}
	}
	if o := b.keys.owners[f.packedKey()]; o.Name != e.Name {
		return o
	}
	return nil
}

// hasBefore reports whether a key that both entries claim belongs to e.
func hasBefore(k packedKey, e, o *Entry) bool {
	addr := netip.AddrFrom16(k.addr).Unmap()
	if mine := e.ownsClusterIP(addr); mine != o.ownsClusterIP(addr) {
		return mine
	}
	return compareAge(e, o) < 0
}

// at returns the first frontend of an entry at an address; nil if there is none. e may be nil.
func (e *Entry) at(a netip.Addr) *Frontend {
	all := e.frontends()
	i, _ := slices.BinarySearchFunc(all, a, func(f *Frontend, a netip.Addr) int { return f.Addr.Addr().Compare(a) })
	if i == len(all) || all[i].Addr.Addr() != a {
		return nil
	}
	return all[i]
}

// ownsClusterIP reports whether an address is a ClusterIP of the entry.
func (e *Entry) ownsClusterIP(a netip.Addr) bool {
	f := e.at(a)
	return f != nil && f.ClusterIP
}

// frontend returns the frontend of that key; nil if there is none. e may be nil.
func (e *Entry) frontend(k Key) *Frontend {
	all := e.frontends()
	if i, ok := slices.BinarySearchFunc(all, k, func(f *Frontend, k Key) int { return f.Key().Compare(k) }); ok {
		return all[i]
	}
	return nil
}
