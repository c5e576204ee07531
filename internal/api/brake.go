package api

import "time"

// A Brake decides whether to believe a list that lacks most of the known objects. An API server gives such a list if it
// was restored, lost its storage, or belongs to another cluster; to follow it would empty every node.
//
// The Brake believes the list once all lists have said the same for the time Bound. The zero value believes every list.
// A Brake belongs to one goroutine.
type Brake struct {
	Bound time.Duration // 0: believe every list at once
	// Some says that at least one object always exists. A list with at most one object is then doubtful, unless it lacks
	// at most one.
	Some  bool
	since time.Time // when the current doubt began; zero: no doubt
}

// maxLost is the number of objects that may be missing without doubt.
const maxLost = 8

// Believe reports whether to believe a list that has kept of the had known objects.
func (b *Brake) Believe(now time.Time, had, kept int) bool {
	lacksMost := had-kept > maxLost && 4*kept < had || b.Some && kept <= 1 && kept < had-1
	switch {
	case b.Bound <= 0 || !lacksMost:
	case b.since.IsZero():
		b.since = now
		return false
	case now.Sub(b.since) < b.Bound:
		return false
	}
	b.since = time.Time{}
	return true
}

// Holds reports whether the last list was not believed.
func (b *Brake) Holds() bool { return !b.since.IsZero() }
