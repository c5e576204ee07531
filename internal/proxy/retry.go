package proxy

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// The pauses after failed passes. They are short, because nobody tells the loop when the cause ends, such as a full disk
// or a lock. A node recovers within maxPause and a quarter. A lasting fault costs at most a fifth of a processor and one
// log line each minute.
const (
	firstPause = 100 * time.Millisecond // doubles
	maxPause   = 3 * time.Second
	retryShare = 4           // a pause is at least this many times as long as the pass took
	logAgain   = time.Minute // for the same error
	logOther   = 10 * time.Second
)

// A retry decides when to try again after a failed pass, and logs failures. The zero value means that no pass has
// failed.
type retry struct {
	tries  int       // consecutive failures
	at     time.Time // the next try
	logged time.Time
	text   string // the error that was logged last
}

// failed notes a failed pass from start to now. It returns the pause before the next try, which is at most longest.
func (r *retry) failed(log *slog.Logger, err error, start, now time.Time, longest time.Duration) time.Duration {
	r.tries++
	pause := min(firstPause<<min(r.tries-1, 10), maxPause)
	pause += rand.N(pause/4 + 1) // so that nodes do not try at the same time
	pause = min(max(pause, retryShare*now.Sub(start)), longest)
	r.at = now.Add(pause)
	text, since := err.Error(), now.Sub(r.logged)
	if r.tries == 1 || since >= logAgain || text != r.text && since >= logOther {
		r.logged, r.text = now, text
		log.Error("the rules could not be written, will try again", "err", err, "tries", r.tries, "again", pause)
	}
	return pause
}

// succeeded notes a successful pass.
func (r *retry) succeeded(log *slog.Logger) {
	if r.tries > 0 {
		log.Info("the rules could be written", "failures", r.tries)
	}
	*r = retry{}
}

// waits reports whether it is too early for the next try.
func (r *retry) waits(now time.Time) bool { return now.Before(r.at) }
