// Package netlink exchanges messages with the kernel over netlink, within a limited time.
//
//	caller ── ctx ──→ Conn.Ask ─ request ─→ kernel; f is called for each answer
//	caller ── ctx ──→ Within ── deadline on a socket of mdlayher/netlink ──→ f: send, receive …
//
// It encapsulates the format of messages and attributes, and the deadlines of sockets.
//
// It promises:
//   - A request ends soon after its context, or after Limit if the context has no deadline.
//   - No answer makes it read beyond the bytes of the answer.
//   - When Within returns, the socket has no deadline.
//
// One system call is never interrupted: the call that sends a batch of changes returns only after the kernel has
// applied the whole batch.
package netlink

import (
	"context"
	"fmt"
	"time"
)

// Limit is the longest time for one exchange with the kernel, or for one run of a program such as nft, if the context
// has no deadline. An idle kernel answers in milliseconds. A loaded kernel reads or writes 50,000 Services in a few
// seconds.
const Limit = time.Minute

// errLimit is the cause when the limit of Bounded ends a context.
var errLimit = fmt.Errorf("no answer within %v: %w", Limit, context.DeadlineExceeded)

// Bounded returns ctx if ctx has a deadline, or else a context that ends after Limit. The caller must call cancel in
// the end.
func Bounded(ctx context.Context) (bounded context.Context, cancel context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, Limit, errLimit)
}

// A Deadliner is a socket with deadlines, for example a *netlink.Conn of mdlayher/netlink.
type Deadliner interface {
	SetDeadline(t time.Time) error
}

// Within calls f, which uses c. If f fails because ctx has ended or Limit is over, Within returns the cause of the
// context. After an error the caller closes c, because c may hold unread answers.
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
		_ = c.SetDeadline(time.Unix(1, 0)) // an error means that c is closed, and f fails anyway
	})
	err := f()
	if !stop() {
		<-expired // otherwise the deadline could hit the next call on c
		if err != nil {
			return context.Cause(ctx)
		}
	}
	return err
}
