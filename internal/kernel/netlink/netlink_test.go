package netlink

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dial opens a socket that gets no messages, so that Receive waits.
func dial(t *testing.T) *netlink.Conn {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func receive(c *netlink.Conn) func() error {
	return func() error { _, err := c.Receive(); return err }
}

// TestSilence: a call that waits for an answer ends with its context.
func TestSilence(t *testing.T) {
	c := dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	began := false
	err := Within(ctx, c, func() error {
		began = true
		go cancel()
		return receive(c)()
	})
	if !errors.Is(err, context.Canceled) || !began {
		t.Errorf("cancelled: began %v, error %v", began, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := Within(ctx, c, receive(c)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expired: error %v", err)
	}
	if err := Within(ctx, c, func() error { t.Error("f was called"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expired before: error %v", err)
	}
}

// TestNext: the deadline of one exchange does not end the next exchange.
func TestNext(t *testing.T) {
	c := dial(t)
	links := func() error {
		_, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
			Data:   make([]byte, unix.SizeofIfInfomsg),
		})
		return err
	}
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := Within(ctx, c, func() error { cancel(); return nil }); err != nil {
			t.Errorf("f succeeded: error %v", err)
		}
		if err := Within(t.Context(), c, links); err != nil {
			t.Fatalf("the next exchange: %v", err)
		}
	}
	failed := errors.New("failed")
	if err := Within(t.Context(), c, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("f failed: error %v", err)
	}
}

func TestBounded(t *testing.T) {
	ctx, cancel := Bounded(t.Context())
	defer cancel()
	if _, ok := ctx.Deadline(); !ok {
		t.Error("a context without a deadline has none")
	}
	want := time.Now().Add(time.Hour)
	parent, cancel := context.WithDeadline(t.Context(), want)
	defer cancel()
	ctx, cancel = Bounded(parent)
	defer cancel()
	if got, _ := ctx.Deadline(); !got.Equal(want) {
		t.Errorf("deadline %v, want the caller's, %v", got, want)
	}
}
