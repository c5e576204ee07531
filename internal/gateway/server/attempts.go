package server

import (
	"errors"
	"slices"
	"time"
)

// A deadline bounds an attempt. The zero value does not.
type deadline struct{ at time.Time }

// deadline returns the bound of an attempt that begins now: the rule's timeouts of the request and of one attempt.
func (x *exchange) deadline(now time.Time) (d deadline) {
	rule := x.decision.Rule
	if rule.Timeout > 0 {
		d.at = x.started.Add(rule.Timeout)
	}
	if rule.BackendTimeout > 0 {
		if by := now.Add(rule.BackendTimeout); d.at.IsZero() || by.Before(d.at) {
			d.at = by
		}
	}
	return d
}

// left returns the time until the deadline, at least a microsecond.
func (d deadline) left(now time.Time) time.Duration {
	if d.at.IsZero() {
		return 24 * time.Hour
	}
	return max(d.at.Sub(now), time.Microsecond)
}

// bound returns a step's timeout within the deadline.
func (d deadline) bound(now time.Time, step time.Duration) time.Duration {
	return min(step, d.left(now))
}

// again reports whether the request is to be sent to another endpoint, and waits for the rule's pause. replayable: the body
// can be sent again.
func (x *exchange) again(r result, attempt int, replayable bool) bool {
	now := time.Now()
	if r.code == 0 && !r.started && !errors.Is(r.err, errBodyTooLong) {
		x.endpoint.failed(now)
	}
	rule := x.decision.Rule
	if r.started || !replayable || x.deadlineOver(now) {
		return false
	}
	attempts := maxUnsent
	retry := rule.Retry
	switch {
	case !r.sent: // nothing happened, so every method may be sent again
		if retry != nil {
			attempts = max(attempts, retry.Attempts)
		}
	case errors.Is(r.err, errBodyTooLong):
		return false
	case retry == nil || retry.ConnectOnly:
		return attempt == 1 && idempotent(x.in.Method()) && !timedOut(r.err)
	case !idempotent(x.in.Method()) && !retry.Unsafe:
		return false
	default:
		attempts = max(retry.Attempts, 1)
	}
	if attempt > attempts {
		return false
	}
	x.srv.metrics.retries.Inc()
	if retry != nil && retry.Backoff > 0 {
		pause := min(retry.Backoff<<min(attempt-1, 6), time.Second, x.deadline(now).left(now))
		t := time.NewTimer(pause)
		<-t.C
	}
	return true
}

// maxUnsent is the number of further endpoints that are tried while no endpoint saw the request.
const maxUnsent = 3

func (x *exchange) deadlineOver(now time.Time) bool {
	t := x.decision.Rule.Timeout
	return t > 0 && now.Sub(x.started) >= t
}

// wantsRetry reports whether Retry asks for another attempt after an answer with this status.
func (x *exchange) wantsRetry(code int) bool {
	rule := x.decision.Rule
	if rule.Retry == nil || !slices.Contains(rule.Retry.Codes, code) || len(x.tried) > max(rule.Retry.Attempts, 1) {
		return false
	}
	return (idempotent(x.in.Method()) || rule.Retry.Unsafe) && !x.deadlineOver(time.Now())
}

// idempotent: RFC 9110, section 9.2.2.
func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// unavailable is the reply if no endpoint is left.
func (x *exchange) unavailable(attempt int) *reply {
	if attempt > 1 {
		return x.refuse(502, "no endpoint answers")
	}
	return x.refuse(503, "no endpoint is ready")
}

// failure is the reply after the last attempt.
func (x *exchange) failure(r result) *reply {
	switch {
	case r.started:
		return &reply{code: 0, reason: "the answer ended early"}
	case errors.Is(r.err, errBodyTooLong):
		return x.refuse(413, "the body is too long")
	case timedOut(r.err):
		return x.refuse(504, "the endpoint is late")
	}
	return x.refuse(502, "the endpoint failed")
}
