package ipvs

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestEnded: a call with a context that has ended does not wait for IPVS.
func TestEnded(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	w := &genlConn{}
	defer w.close()
	for name, f := range map[string]func() error{
		"open":     func() error { return w.open(ctx) },
		"do":       func() error { return w.do(ctx, []serverOp{{cmd: cmdDelServer, server: serverID{}}}) },
		"servers":  func() error { _, err := w.servers(ctx); return err },
		"reals":    func() error { _, err := w.reals(ctx, serverID{}); return err },
		"timeouts": func() error { return w.timeouts(ctx, 1, 1, 1) },
	} {
		if err := f(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
