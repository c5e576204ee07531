// Package netlink talks to the kernel over netlink, and bounds the time that it may take to
// answer.
//
//	caller ── ctx ──→ Conn.Ask ─ message ─→ kernel; f is called for each answer
//	caller ── ctx ──→ Within ── deadline on a socket of mdlayher/netlink ──→ f: send, receive …
//
// It hides how a socket's deadlines follow a context, and how messages and attributes lie
// in a datagram. It promises that a question ends soon after its context, or after Limit if
// the context has no deadline, that no answer makes it read beyond its bytes, and that the
// deadline is gone when Within returns.
//
// One system call is not interrupted: the kernel applies a whole batch of changes before
// the call that sends it returns.
package netlink

import (
	"context"
	"fmt"
	"time"
)

// Limit is how long one exchange with the kernel, or one run of a program that makes it,
// may take if its context has no deadline. It is long: an idle kernel answers in
// milliseconds, a loaded one reads or writes 50,000 Services in a few seconds.
const Limit = time.Minute

// errLimit is why a context of Bounded ended.
var errLimit = fmt.Errorf("no answer within %v: %w", Limit, context.DeadlineExceeded)

// Bounded returns ctx, or one that ends after Limit if ctx has no deadline. The caller
// calls cancel when it is done.
func Bounded(ctx context.Context) (bounded context.Context, cancel context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, Limit, errLimit)
}

// A Deadliner is a socket with deadlines: a *netlink.Conn of mdlayher/netlink.
type Deadliner interface {
	SetDeadline(t time.Time) error
}

// Within calls f, which works on c. If f fails because ctx has ended, or because Limit is
// over, the error is the context's; what f left unread on c is still there, so the caller
// closes c.
func Within(ctx context.Context, c Deadliner, f func() error) error {
	ctx, cancel := Bounded(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		_ = c.SetDeadline(time.Unix(1, 0)) // a socket that is closed fails by itself
	})
	err := f()
	if !stop() {
		<-expired // or it would hit the next call on c
		if err != nil {
			return context.Cause(ctx)
		}
	}
	return err
}
