package observe_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

func TestMain(m *testing.M) { testnet.Main(m) }

const patience = 10 * time.Second

// tagged sends a probe as package probe does, and returns the error of the client.
func tagged(h *testnet.Host, network string, to netip.AddrPort) (err error) {
	d := net.Dialer{Timeout: time.Second, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errorOf(raw.Control(func(fd uintptr) {
			err = setTag(int(fd), to.Addr().Is4())
		}), &err)
	}}
	return h.Do(func() error {
		c, err := d.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 100))
		return err
	})
}

func errorOf(a error, b *error) error {
	if a != nil {
		return a
	}
	return *b
}

func setTag(fd int, is4 bool) error {
	if is4 {
		return syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, syscall.IP_TOS, twonodes.Tag<<2)
	}
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, twonodes.Tag<<2)
}

// describe prints observations, one a line, without times and numbers that differ between runs.
func describe(all []trace.Observation) string {
	var b strings.Builder
	for _, o := range all {
		dir := "→"
		if o.Reply {
			dir = "←"
		}
		fmt.Fprintf(&b, "%s %d %s ", o.Node, o.Pass, dir)
		switch {
		case o.Rule != nil:
			fmt.Fprintf(&b, "%s %d %s %s %s %s  %v > %v ttl %d %s [%s]\n", o.Rule.Hook, o.Rule.Priority, o.Rule.Place(), o.Rule.Kind, o.Rule.Verdict, o.Rule.Target,
				o.Packet.Src, o.Packet.Dst, o.Packet.TTL, o.Packet.Flags, o.Rule.Text)
		case o.Flow != nil:
			fmt.Fprintf(&b, "conntrack %s %v | %v %s\n", o.Flow.Event, o.Flow.Orig, o.Flow.Reply, o.Flow.State)
		case o.Drop != nil:
			fmt.Fprintf(&b, "dropped %s %s pod=%v in=%s %v > %v\n", o.Drop.Reason, o.Drop.Where, o.Drop.Pod, o.Packet.In, o.Packet.Src, o.Packet.Dst)
		case o.State != nil:
			text, _ := json.Marshal(o.State)
			fmt.Fprintf(&b, "state %s\n", text)
		default:
			fmt.Fprintf(&b, "%s\n", o.Note)
		}
	}
	return b.String()
}
