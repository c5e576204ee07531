package dns

import (
	"log/slog"
	"sync"
	"time"
)

const (
	failurePeriod  = time.Minute
	failureReasons = 16 // bounds the memory if an upstream invents reasons
)

// failures limits the log lines of failed questions. For each reason the first failure is a line, and the number of
// further ones in the period is a second line.
type failures struct {
	to     *slog.Logger
	period time.Duration

	mu      sync.Mutex
	reasons map[string]*repeated
}

// repeated counts the failures of one reason after the first of a period.
type repeated struct {
	more  int
	last  string
	timer *time.Timer
}

func newFailures(to *slog.Logger, period time.Duration) *failures {
	return &failures{to: to, period: period, reasons: make(map[string]*repeated)}
}

// first counts a failure and reports whether it is the first of its reason in this period.
func (f *failures) first(reason, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reasons[reason] == nil && len(f.reasons) >= failureReasons {
		reason = "other"
	}
	if r := f.reasons[reason]; r != nil {
		r.more++
		r.last = text
		return false
	}
	r := new(repeated)
	r.timer = time.AfterFunc(f.period, func() { f.end(reason, r) })
	f.reasons[reason] = r
	return true
}

// end logs the failures that followed the first one of a period.
func (f *failures) end(reason string, r *repeated) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reasons[reason] != r {
		return // close was faster
	}
	delete(f.reasons, reason)
	if r.more > 0 {
		f.to.Error("more questions failed", "reason", reason, "count", r.more, "in", f.period.String(), "last", r.last)
	}
}

// close ends all periods.
func (f *failures) close() {
	f.mu.Lock()
	all := make(map[string]*repeated, len(f.reasons))
	for reason, r := range f.reasons {
		all[reason] = r
	}
	f.mu.Unlock()
	for reason, r := range all {
		r.timer.Stop()
		f.end(reason, r)
	}
}
