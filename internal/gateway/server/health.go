package server

import (
	"sync/atomic"
	"time"
)

// Passive ejection: an endpoint whose last ejectAfter attempts all failed gets no requests for a while, if at least half
// of the endpoints stay. Each further ejection without a success in between lasts longer.
const (
	ejectAfter = 5
	ejectFor   = 10 * time.Second
	ejectMax   = 5 * time.Minute
)

// health is what the server has seen of an endpoint.
type health struct {
	consecutive atomic.Int32 // failures in a row
	until       atomic.Int64 // ejected until then, in nanoseconds since 1970; 0: not ejected
	times       atomic.Int32 // ejections in a row
}

// usable reports whether the endpoint gets requests. The first caller after an ejection's end ends it.
func (h *health) usable(u *upstream, now time.Time) bool {
	until := h.until.Load()
	if until == 0 {
		return true
	}
	if now.UnixNano() < until {
		return false
	}
	if h.until.CompareAndSwap(until, 0) {
		h.consecutive.Store(ejectAfter - 1) // the next failure ejects it again
		u.ejected.Add(-1)
	}
	return true
}

// recover ends an ejection. It reports whether there was one.
func (h *health) recover() bool { return h.until.Swap(0) != 0 }

// succeeded notes an answer.
func (e *endpoint) succeeded() {
	if e.health.consecutive.Load() != 0 {
		e.health.consecutive.Store(0)
		e.health.times.Store(0)
	}
}

// failed notes an attempt without an answer.
func (e *endpoint) failed(now time.Time) {
	h, u := &e.health, e.up
	if h.consecutive.Add(1) < ejectAfter || e.gone.Load() {
		return
	}
	// At least half of the endpoints stay.
	for {
		n := u.ejected.Load()
		if 2*(int(n)+1) > len(u.set.Load().all) {
			return
		}
		if u.ejected.CompareAndSwap(n, n+1) {
			break
		}
	}
	pause := min(ejectFor<<min(h.times.Add(1)-1, 5), ejectMax)
	if !h.until.CompareAndSwap(0, now.Add(pause).UnixNano()) {
		u.ejected.Add(-1) // another request ejected it at the same time
		return
	}
	u.srv.metrics.ejections.Inc()
	u.srv.Log.Warn("an endpoint does not answer, and gets no requests for a while [see its pod's log]", "service", u.key.service, "endpoint", e.text, "pause", pause)
}
