package service

import "time"

// A Brake decides whether to believe an account of what there is that lacks most of what
// there was: an API server that was restored, is another cluster's, or lost its storage
// answers so, and what follows from it empties every node. Such an account is believed when
// every later one says the same until Bound has passed. The zero value believes all. It
// belongs to one goroutine.
type Brake struct {
	Bound time.Duration // 0: each account is believed at once
	// Some says that there is always something, so that it is doubtful if all is gone,
	// however little that was.
	Some  bool
	since time.Time // of the first of an unbroken row of doubtful accounts; zero: none
}

// maxLost is how many things may be missing without doubt, however few there were.
const maxLost = 8

// Believe reports whether an account counts that has kept of the had things that there were.
// foreign says that it is of another cluster, so that nothing of it is believed at first.
func (b *Brake) Believe(now time.Time, had, kept int, foreign bool) bool {
	most := had-kept > maxLost && 4*kept < had || b.Some && had > 1 && kept == 0
	switch {
	case b.Bound <= 0 || !most && !foreign:
	case b.since.IsZero():
		b.since = now
		return false
	case now.Sub(b.since) < b.Bound:
		return false
	}
	b.since = time.Time{}
	return true
}

// Holds reports whether the last account was not believed.
func (b *Brake) Holds() bool { return !b.since.IsZero() }
