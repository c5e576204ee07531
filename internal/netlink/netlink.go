// Package netlink bounds the time that the kernel may take to answer over netlink.
//
//	caller ── ctx ──→ Within ── deadline on the socket ──→ f: send, receive, receive …
//
// It hides how a socket's read and write deadlines follow a context. It promises that f's
// calls on the socket fail soon after the context ends, or after Limit if the context has
// no deadline, and that the deadline is gone when Within returns.
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

// A Conn is a socket with deadlines: a *netlink.Conn of mdlayher/netlink.
type Conn interface {
	SetDeadline(t time.Time) error
}

// Within calls f, which works on c. If f fails because ctx has ended, or because Limit is
// over, the error is the context's; what f left unread on c is still there, so the caller
// closes c.
func Within(ctx context.Context, c Conn, f func() error) error {
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
