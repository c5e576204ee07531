package service

import (
	"iter"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// shardCount keeps a change cheap: a change copies one shard, which has 50 of 50,000 Services.
const shardCount = 1024

// A Table has all addresses that a node answers for. It is immutable and may be read by any goroutine. The zero Table
// has none.
type Table struct {
	Settings Settings
	// HealthChecks are the answers to load balancers, sorted by Service. Datapaths ignore them.
	HealthChecks []HealthCheck
	shards       [shardCount]*shard // nil: empty. A shard in a Table never changes
}

// A shard is a part of a Table, sorted by name. It needs a tenth of the memory of a map. Diff recognizes unchanged
// shards by their pointers.
type shard struct{ entries []*Entry }

// all returns the entries of a shard, which may be nil.
func (s *shard) all() []*Entry {
	if s == nil {
		return nil
	}
	return s.entries
}

// find returns the index of the entry of that name, or the index at which to insert it.
func (s *shard) find(n api.Name) (at int, ok bool) {
	return slices.BinarySearchFunc(s.all(), n, func(e *Entry, n api.Name) int { return e.Name.Compare(n) })
}

// shardOf returns the shard of a name (FNV-1a). A Service is in the same shard of every Table.
func shardOf(n api.Name) int {
	h := uint32(2166136261)
	for _, s := range [...]string{n.Namespace, "/", n.Name} {
		for i := range len(s) {
			h = (h ^ uint32(s[i])) * 16777619
		}
	}
	return int(h % shardCount)
}

// Entry returns the entry of a Service; nil if the table does not have it.
func (t *Table) Entry(n api.Name) *Entry {
	s := t.shards[shardOf(n)]
	if i, ok := s.find(n); ok {
		return s.entries[i]
	}
	return nil
}

// with returns a table in which the given entries replace the entries of the same names. A nil entry removes an entry.
// Both tables share the rest.
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

// Sorted returns all frontends by Service name, then by address: the order for people.
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

// NewTable returns a table of frontends that a datapath read back or a test wrote. The frontends must have different
// keys.
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
