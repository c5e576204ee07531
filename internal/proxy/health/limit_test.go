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
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// openFrom opens n connections from an address. Each connection has had one answer.
func openFrom(t *testing.T, from, to string, n int) (all []net.Conn) {
	t.Helper()
	d := net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{IP: net.IP(netip.MustParseAddr(from).AsSlice())}}
	for range n {
		c, err := d.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if !answers(c) {
			t.Errorf("%s is not answered at %s", from, to)
		}
		all = append(all, c)
	}
	return all
}

// kept returns the number of connections that still get answers.
func kept(all []net.Conn) (n int) {
	for _, c := range all {
		if answers(c) {
			n++
		}
	}
	return n
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

// TestConnectionsAreLimited: there is a limit for the connections of a client, and one for all clients. A new client
// always gets an answer, and so does the node itself. The connection with the longest silence is closed.
func TestConnectionsAreLimited(t *testing.T) {
	h := start(t, func(c *Config) { c.maxConns = 20 })
	_, port, err := net.SplitHostPort(h.server.Addr("healthz").String())
	if err != nil {
		t.Fatal(err)
	}
	// In 127/8 each address is a separate client, and the server's own address is the node.
	at := "127.0.0.1:" + port
	node := openFrom(t, "127.0.0.1", at, 10)
	first := openFrom(t, "127.0.0.2", at, listener.MaxConnsOfClient+5)
	if n := kept(first); n != listener.MaxConnsOfClient {
		t.Errorf("a client keeps %d connections, want %d", n, listener.MaxConnsOfClient)
	}
	second := openFrom(t, "127.0.0.3", at, 3)
	for i := range 60 { // more clients than connections
		openFrom(t, fmt.Sprintf("127.0.1.%d", 1+i), at, 1)
	}
	if n := kept(first) + kept(second); n > 20 {
		t.Errorf("%d connections are open, want 20 at most", n)
	}
	if n := kept(node); n != 10 {
		t.Errorf("the node itself keeps %d of 10: the kubelet's probes would fail", n)
	}
}

// TestGreedyMakeRoom: the client with the most connections makes room. A client with one connection keeps it, however
// long it pauses.
func TestGreedyMakeRoom(t *testing.T) {
	h := start(t, func(c *Config) { c.maxConns = 20 })
	at := h.server.Addr("healthz").String()
	prober := openFrom(t, "127.0.0.9", at, 1)
	for i := range 5 {
		openFrom(t, fmt.Sprintf("127.0.0.%d", 2+i), at, listener.MaxConnsOfClient)
	}
	if kept(prober) != 1 {
		t.Error("the connection of a client that has one is closed for those of greedy ones")
	}
}

// TestSilentClients: a connection without a request, or with half a request, ends after a while.
func TestSilentClients(t *testing.T) {
	h := start(t, func(c *Config) { c.headerTimeout = 100 * time.Millisecond })
	for _, text := range []string{"", "GET /livez HTTP/1.1\r\nHost: no", "GET /livez HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20)} {
		c, err := net.Dial("tcp", h.server.Addr("healthz").String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(deadline))
		_, _ = fmt.Fprint(c, text) // the server may close the connection before the text ends
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

// TestSlowReaders: the server drops a client that does not read the answer.
func TestSlowReaders(t *testing.T) {
	var mu sync.Mutex
	closed := map[string]bool{}
	h := start(t, func(c *Config) {
		c.answerTimeout = 100 * time.Millisecond
		// More than the buffers of both sockets can hold.
		c.Status = func() any { return strings.Repeat("x", 16<<20) }
		c.connState = func(c net.Conn, s http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			if s == http.StateClosed {
				closed[c.RemoteAddr().String()] = true
			}
		}
	})
	c, err := net.Dial("tcp", h.server.Addr("healthz").String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET /statusz HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	until(t, "the server to leave a client that does not read", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return closed[c.LocalAddr().String()]
	})
}

// TestChecksAreLimited: clients that occupy the port of one Service's check do not keep others from it, or from another
// Service's check.
func TestChecksAreLimited(t *testing.T) {
	c := startChecks(t)
	a, b := freePort(t), freePort(t)
	c.sync([]Check{checkOf(web, a, 1, 0), checkOf(dns, b, 1, 0)})
	atA, atB := fmt.Sprintf("127.0.0.1:%d", a), fmt.Sprintf("127.0.0.1:%d", b)
	other := openFrom(t, "127.0.0.2", atB, 1)
	first := openFrom(t, "127.0.0.2", atA, listener.MaxConnsOfClient+5)
	if n := kept(first); n != listener.MaxConnsOfClient {
		t.Errorf("a client keeps %d connections, want %d", n, listener.MaxConnsOfClient)
	}
	all := first
	for i := range maxConnsOfCheck / listener.MaxConnsOfClient {
		all = append(all, openFrom(t, fmt.Sprintf("127.0.0.%d", 10+i), atA, listener.MaxConnsOfClient)...)
	}
	openFrom(t, "127.0.0.3", atA, 1) // a load balancer's probe gets an answer
	if n := kept(all); n > maxConnsOfCheck {
		t.Errorf("%d connections of one Service's check are open, want %d at most", n, maxConnsOfCheck)
	}
	if kept(other) != 1 {
		t.Error("a client of another Service's check has lost its connection")
	}
}
