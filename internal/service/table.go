package service

import (
	"iter"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// shardCount keeps a change cheap: it copies one shard, 50 of 50,000 Services.
const shardCount = 1024

// A Table is everything a node answers for, at one moment. It is immutable and may
// be read by any goroutine. The zero Table answers for nothing.
type Table struct {
	Settings Settings
	// HealthChecks are what load balancers may ask, sorted by Service. A datapath has
	// nothing to do with them.
	HealthChecks []HealthCheck
	shards       [shardCount]*shard // nil: empty; never changed once in a Table
}

// A shard is a part of a Table, sorted by name: a tenth of the memory of a map. It is a
// pointer's target so that Diff can tell unchanged ones without looking into them.
type shard struct{ entries []*Entry }

// all returns the entries of a shard that may be nil.
func (s *shard) all() []*Entry {
	if s == nil {
		return nil
	}
	return s.entries
}

// find returns where the entry of that name is, or would be.
func (s *shard) find(n api.Name) (at int, ok bool) {
	return slices.BinarySearchFunc(s.all(), n, func(e *Entry, n api.Name) int { return e.Name.Compare(n) })
}

// shardOf spreads names over shards (FNV-1a): a function of the name alone, so that
// the same Service is in the same shard of every Table.
func shardOf(n api.Name) int {
	h := uint32(2166136261)
	for _, s := range [...]string{n.Namespace, "/", n.Name} {
		for i := range len(s) {
			h = (h ^ uint32(s[i])) * 16777619
		}
	}
	return int(h % shardCount)
}

// Entry returns what the Service asks of the node, nil if it is not in the table.
func (t *Table) Entry(n api.Name) *Entry {
	s := t.shards[shardOf(n)]
	if i, ok := s.find(n); ok {
		return s.entries[i]
	}
	return nil
}

// with returns a table in which the given entries have replaced those of the same
// name; a nil entry removes it. The rest is shared.
func (t *Table) with(changed map[api.Name]*Entry) *Table {
	next := *t
	for name, e := range changed {
		i := shardOf(name)
		at, has := next.shards[i].find(name)
		if e == nil && !has {
			continue
		}
		if next.shards[i] == t.shards[i] {
			next.shards[i] = &shard{append(make([]*Entry, 0, len(t.shards[i].all())+1), t.shards[i].all()...)}
		}
		s := next.shards[i]
		switch {
		case e == nil:
			s.entries = slices.Delete(s.entries, at, at+1)
		case has:
			s.entries[at] = e
		default:
			s.entries = slices.Insert(s.entries, at, e)
		}
	}
	return &next
}

// Entries yields the entries in no particular order.
func (t *Table) Entries() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for i := range t.shards {
			for _, e := range t.shards[i].all() {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Frontends yields all frontends in no particular order.
func (t *Table) Frontends() iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		for e := range t.Entries() {
			for _, f := range e.Frontends {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// Sorted returns all frontends by service name, then address: the order people read.
func (t *Table) Sorted() []*Frontend {
	return slices.SortedFunc(t.Frontends(), func(a, b *Frontend) int {
		if c := a.Service.Name.Compare(b.Service.Name); c != 0 {
			return c
		}
		return a.Key().Compare(b.Key())
	})
}

// Len returns the number of Services and of frontends.
func (t *Table) Len() (services, frontends int) {
	for e := range t.Entries() {
		services++
		frontends += len(e.Frontends)
	}
	return services, frontends
}

// NewTable makes a table of frontends as a datapath reads them back or a test
// writes them. The frontends must have different keys.
func NewTable(s Settings, frontends []*Frontend) *Table {
	entries := map[api.Name]*Entry{}
	for _, f := range frontends {
		e := entries[f.Service.Name]
		if e == nil {
			e = &Entry{Name: f.Service.Name}
			entries[f.Service.Name] = e
		}
		e.Frontends = append(e.Frontends, f)
	}
	for _, e := range entries {
		slices.SortFunc(e.Frontends, func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
	}
	return (&Table{Settings: s}).with(entries)
}
