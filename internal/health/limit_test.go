package health

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/listener"
)

// openFrom makes so many connections from an address, silent ones, and returns those that the server
// keeps: a request on each is answered.
func openFrom(t *testing.T, from, to string, n int) (kept []net.Conn) {
	t.Helper()
	d := net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{IP: net.IP(netip.MustParseAddr(from).AsSlice())}}
	for range n {
		c, err := d.Dial("tcp", to)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // closed before connect returned
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if answers(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// answers sends a request and reports whether an answer came.
func answers(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := c.Write([]byte("GET /livez HTTP/1.1\r\nHost: node\r\n\r\n")); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && resp.StatusCode == http.StatusOK
}

// TestConnectionsAreLimited: a client keeps a few connections; what it opens besides is closed at
// once, and others are answered meanwhile.
func TestConnectionsAreLimited(t *testing.T) {
	h := start(t, func(c *Config) { c.maxConns = 20 })
	_, port, err := net.SplitHostPort(h.server.Addr("healthz").String())
	if err != nil {
		t.Fatal(err)
	}
	// In 127/8 each address is a client of its own; the server's own is the node.
	at := "127.0.0.1:" + port
	first := openFrom(t, "127.0.0.2", at, listener.MaxConnsOfClient+5)
	if len(first) != listener.MaxConnsOfClient {
		t.Errorf("a client keeps %d connections, want %d", len(first), listener.MaxConnsOfClient)
	}
	if kept := openFrom(t, "127.0.0.3", at, 10); len(kept) != 4 {
		t.Errorf("a second client keeps %d connections, want what is left of 20", len(kept))
	}
	if kept := openFrom(t, "127.0.0.1", at, 10); len(kept) != 10 {
		t.Errorf("the node itself gets %d of 10: the kubelet's probes would fail", len(kept))
	}
	for _, c := range first {
		c.Close()
	}
	until(t, "connections that were closed to be counted off", func() bool { return len(openFrom(t, "127.0.0.4", at, 1)) == 1 })
}

// TestSilentClients: a connection without a request, or with half of one, ends by itself.
func TestSilentClients(t *testing.T) {
	h := start(t, func(c *Config) { c.headerTimeout = 100 * time.Millisecond })
	for _, text := range []string{"", "GET /livez HTTP/1.1\r\nHost: no", "GET /livez HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20)} {
		c, err := net.Dial("tcp", h.server.Addr("healthz").String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(deadline))
		_, _ = fmt.Fprint(c, text) // the server may have enough before the end
		buf := make([]byte, 4096)
		for {
			if _, err = c.Read(buf); err != nil {
				break
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.20q…: the server still waits after %v", text, deadline)
		}
	}
}

// TestChecksAreLimited: a client that holds the port of one Service's check keeps others neither
// out of it nor out of another Service's.
func TestChecksAreLimited(t *testing.T) {
	c := startChecks(t)
	a, b := freePort(t), freePort(t)
	c.sync([]Check{checkOf(web, a, 1, 0), checkOf(dns, b, 1, 0)})
	if kept := openFrom(t, "127.0.0.2", fmt.Sprintf("127.0.0.1:%d", a), listener.MaxConnsOfClient+5); len(kept) != listener.MaxConnsOfClient {
		t.Errorf("a client keeps %d connections, want %d", len(kept), listener.MaxConnsOfClient)
	}
	if kept := openFrom(t, "127.0.0.3", fmt.Sprintf("127.0.0.1:%d", a), 1); len(kept) != 1 {
		t.Error("another client is kept out")
	}
	if kept := openFrom(t, "127.0.0.2", fmt.Sprintf("127.0.0.1:%d", b), 1); len(kept) != 1 {
		t.Error("the client is kept out of another Service's check")
	}
}
