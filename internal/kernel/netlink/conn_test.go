package netlink

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestAsk: a dump, single answers, errors from the kernel, and the request after an error.
func TestAsk(t *testing.T) {
	c := open(t)
	links := 0
	if _, err := c.Ask(t.Context(), unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg), func([]byte) error { links++; return nil }); err != nil || links == 0 {
		t.Errorf("%d links, error %v", links, err)
	}
	body := append(make([]byte, unix.SizeofIfInfomsg), AppendText(nil, unix.IFLA_IFNAME, "lo")...)
	for range 2 {
		names := ""
		_, err := c.Ask(t.Context(), unix.RTM_GETLINK, 0, body, func(b []byte) error {
			return Attributes(b[unix.SizeofIfInfomsg:], func(typ uint16, b []byte) error {
				if typ == unix.IFLA_IFNAME {
					names += string(Text(b))
				}
				return nil
			})
		})
		if err != nil || names != "lo" {
			t.Errorf("links %q, error %v", names, err)
		}
		body := append(make([]byte, unix.SizeofIfInfomsg), AppendText(nil, unix.IFLA_IFNAME, "not-there")...)
		if _, err := c.Ask(t.Context(), unix.RTM_GETLINK, 0, body, nil); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a link that is not there: %v", err)
		}
	}
}

// TestFamily: the family nlctrl exists, and an invented family does not.
func TestFamily(t *testing.T) {
	if n, err := Family(t.Context(), "nlctrl"); err != nil || n != unix.GENL_ID_CTRL {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := Family(t.Context(), "not-there"); n != 0 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%d, %v", n, err)
	}
}

// TestAskEnds: a request that the kernel does not answer ends with its context. The kernel accepts a message NOOP and
// sends no answer.
func TestAskEnds(t *testing.T) {
	c := open(t)
	done := errors.New("done")
	if _, err := c.Ask(t.Context(), unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg), func([]byte) error { return done }); !errors.Is(err, done) {
		t.Errorf("f failed: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	c = open(t)
	if _, err := c.Ask(ctx, unix.NLMSG_NOOP, unix.NLM_F_ROOT, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	if _, err := c.Ask(ctx, unix.RTM_GETLINK, 0, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expired before: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go cancel()
	if _, err := open(t).Ask(ctx, unix.NLMSG_NOOP, unix.NLM_F_ROOT, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
