package proxy

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// How passes that fail are tried again. The pauses are short, because nobody tells the loop when
// what made them fail has ended, a full disk or a lock; a node heals within lastRetry and a
// quarter of it. What lasts costs no more than a fifth of a processor, and a log line a minute.
const (
	firstRetry = 100 * time.Millisecond // doubles
	lastRetry  = 3 * time.Second
	retryShare = 4           // a pause is at least this many times as long as the pass took
	logAgain   = time.Minute // for the same error
	logOther   = 10 * time.Second
)

// A retry says when a pass that failed is tried again, and logs failures. Its zero value is that of
// a loop in which none has failed.
type retry struct {
	tries  int // in a row
	at     time.Time
	logged time.Time
	text   string // of the error that was logged last
}

// failed notes that a pass from start to now has failed, and returns how long to wait: at most
// longest.
func (r *retry) failed(log *slog.Logger, err error, start, now time.Time, longest time.Duration) time.Duration {
	r.tries++
	pause := min(firstRetry<<min(r.tries-1, 10), lastRetry)
	pause += rand.N(pause/4 + 1) // not all nodes at once
	pause = min(max(pause, retryShare*now.Sub(start)), longest)
	r.at = now.Add(pause)
	text, since := err.Error(), now.Sub(r.logged)
	if r.tries == 1 || since >= logAgain || text != r.text && since >= logOther {
		r.logged, r.text = now, text
		log.Error("the rules could not be written, will try again", "err", err, "tries", r.tries, "again", pause)
	}
	return pause
}

// succeeded notes that a pass has not failed.
func (r *retry) succeeded(log *slog.Logger) {
	if r.tries > 0 {
		log.Info("the rules could be written", "failures", r.tries)
	}
	*r = retry{}
}

// waits reports whether it is too early to try again.
func (r *retry) waits(now time.Time) bool { return now.Before(r.at) }
