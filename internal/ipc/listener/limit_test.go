package listener

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// A hall is a server on a port of 127.0.0.1 whose connections are counted by limits, one in the other. It
// answers each byte with the same byte.
type hall struct {
	*testing.T
	at string
}

func open(t *testing.T, limits ...*Limit) *hall {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	at := l.Addr().String()
	for _, m := range limits {
		l = m.Listen(l)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until its client or the limit ends it
			}()
		}
	}()
	return &hall{t, at}
}

// enter connects from an address. In 127/8 each is a client of its own; 127.0.0.1 is the node.
func (h *hall) enter(from string) net.Conn {
	h.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	c, err := d.Dial("tcp", h.at)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { c.Close() })
	if !speaks(c) {
		h.Errorf("%s is not let in", from)
	}
	return c
}

// speaks reports whether the server still answers by a connection.
func speaks(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	b := []byte{'x'}
	if _, err := c.Write(b); err != nil {
		return false
	}
	_, err := io.ReadFull(c, b)
	return err == nil
}

func (h *hall) want(what string, c net.Conn, there bool) {
	h.Helper()
	if speaks(c) != there {
		h.Errorf("%s is open: %v, want %v", what, !there, there)
	}
}

// TestSilentLongest: of a client with too many connections the one ends that has been silent longest.
func TestSilentLongest(t *testing.T) {
	h := open(t, NewLimit(10, 3, 2))
	a, b, c := h.enter("127.0.0.2"), h.enter("127.0.0.2"), h.enter("127.0.0.2")
	other, node, own := h.enter("127.0.0.3"), h.enter("127.0.0.1"), h.enter("127.0.0.1")
	h.want("the first", a, true)
	h.enter("127.0.0.2")
	h.want("the second, silent longest", b, false)
	h.want("the third", c, true)
	h.want("the first", a, true)
	h.want("another client's", other, true)
	h.enter("127.0.0.1")
	h.want("the node's first", node, false)
	h.want("the node's second", own, true)
}

// TestMostMakesRoom: of too many connections of all clients, one of the client with the most ends, and
// none of the node itself.
func TestMostMakesRoom(t *testing.T) {
	h := open(t, NewLimit(5, 4, 9))
	var node []net.Conn
	for range 8 {
		node = append(node, h.enter("127.0.0.1"))
	}
	one := h.enter("127.0.0.2")
	greedy := h.enter("127.0.0.3")
	for range 3 {
		h.enter("127.0.0.3")
	}
	h.enter("127.0.0.4")
	h.want("the only one of its client", one, true)
	h.want("the first of the greedy one", greedy, false)
	for _, c := range node {
		h.want("the node's", c, true)
	}
}

// TestOneInTheOther: what one limit ends is counted off by the other too.
func TestOneInTheOther(t *testing.T) {
	inner, outer := NewLimit(10, 2, 2), NewLimit(4, 4, 4)
	h := open(t, inner, outer)
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		for range 3 {
			h.enter(from)
		}
	}
	count := func(m *Limit) (n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, of := range m.of {
			n += of
		}
		if n != m.total || n != m.open.Len() {
			t.Errorf("%d of clients, %d in all, %d listed", n, m.total, m.open.Len())
		}
		return n
	}
	for end := time.Now().Add(10 * time.Second); count(inner) != 4 || count(outer) != 4; {
		if time.Now().After(end) {
			t.Fatalf("%d and %d are open, want 4", count(inner), count(outer))
		}
	}
}
