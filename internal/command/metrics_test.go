package command

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// connect opens a connection from an address. In 127/8 each address is a client of its own.
func connect(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	var c net.Conn
	var err error
	for end := time.Now().Add(10 * time.Second); ; {
		if c, err = d.Dial("tcp", to); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// healthy asks by a connection, which stays open, and reports whether the answer is 200.
func healthy(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && resp.StatusCode == http.StatusOK
}

// TestGreedyScraper: a client that holds connections open has a few of them at the port of metrics, and the health of
// the program is told to others.
func TestGreedyScraper(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, at, "--metrics", NewRegistry(), Checks{"/healthz": func() error { return nil }})
	}()
	other := connect(t, "127.0.0.3", at)
	var all []net.Conn
	for range listener.MaxConnsOfClient + 20 {
		c := connect(t, "127.0.0.2", at)
		if !healthy(c) {
			t.Error("a connection is not answered")
		}
		all = append(all, c)
	}
	kept := 0
	for _, c := range all {
		if healthy(c) {
			kept++
		}
	}
	if kept != listener.MaxConnsOfClient {
		t.Errorf("a client has %d connections, want %d", kept, listener.MaxConnsOfClient)
	}
	if !healthy(other) {
		t.Error("another client is not answered")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
