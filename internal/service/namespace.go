package service

import (
	"cmp"
	"slices"
)

// A namespace counts the frontends of its Services.
type namespace struct {
	frontends int // of all entries
	// entries and last are set while the namespace has too many frontends: all entries, oldest first, and the youngest
	// entry that has its frontends (nil: no entry has).
	entries []*Entry
	last    *Entry
}

// count notes that now replaces was. One of them may be nil.
func (b *Builder) count(was, now *Entry) {
	name := cmp.Or(now, was).Name.Namespace
	s := b.namespaces[name]
	if s == nil {
		s = &namespace{}
		b.namespaces[name] = s
	}
	s.frontends += len(now.frontends()) - len(was.frontends())
	switch {
	case s.entries != nil:
		s.replace(was, now)
		b.crowded[name] = struct{}{}
	case exceeds(s.frontends, b.limit):
		b.crowded[name] = struct{}{}
	case s.frontends == 0:
		delete(b.namespaces, name)
	}
}

// replace keeps entries sorted.
func (s *namespace) replace(was, now *Entry) {
	if was != nil {
		if i, ok := slices.BinarySearchFunc(s.entries, was, compareAge); ok {
			s.entries = slices.Delete(s.entries, i, i+1)
		}
	}
	if now != nil {
		i, _ := slices.BinarySearchFunc(s.entries, now, compareAge)
		s.entries = slices.Insert(s.entries, i, now)
	}
}

// ration decides which entries have their frontends in namespaces with too many, and marks entries for which that
// changed.
func (b *Builder) ration() {
	for name := range b.crowded {
		s := b.namespaces[name]
		was := 0 // number of entries that had their frontends
		if s.entries == nil {
			s.entries = b.entriesOf(name)
			was = len(s.entries)
		} else if s.last != nil {
			was, _ = slices.BinarySearchFunc(s.entries, s.last, compareAge)
			if was < len(s.entries) && compareAge(s.entries[was], s.last) == 0 {
				was++
			}
		}
		fit, sum := 0, 0
		for _, e := range s.entries {
			if sum += len(e.Frontends); exceeds(sum, b.limit) {
				break
			}
			fit++
		}
		for _, e := range s.entries[min(was, fit):max(was, fit)] {
			b.mark(e.Name)
		}
		switch {
		case fit == len(s.entries):
			s.entries, s.last = nil, nil
		case fit == 0:
			s.last = nil
		default:
			s.last = s.entries[fit-1]
		}
		if s.frontends == 0 {
			delete(b.namespaces, name)
		}
	}
	clear(b.crowded)
}

// entriesOf returns the entries of a namespace, oldest first.
func (b *Builder) entriesOf(name string) []*Entry {
	var all []*Entry
	for e := range b.table.Entries() {
		if _, newer := b.changed[e.Name]; !newer && e.Name.Namespace == name {
			all = append(all, b.entry(e.Name))
		}
	}
	for n, e := range b.changed {
		if e != nil && n.Namespace == name {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, compareAge)
	return all
}

// crowdedOut reports whether an entry gets no frontends because older entries of its namespace use up the limit.
func (b *Builder) crowdedOut(e *Entry) bool {
	s := b.namespaces[e.Name.Namespace]
	return s != nil && s.entries != nil && (s.last == nil || compareAge(e, s.last) > 0)
}

// compareAge orders entries, the oldest first.
func compareAge(a, b *Entry) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
}
