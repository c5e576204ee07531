package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/listener"
)

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
	// In 127/8 each address is a client of its own.
	ask := func(from string) error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
		transport := &http.Transport{DialContext: d.DialContext} // keeps its connection, which nobody closes before the end
		t.Cleanup(transport.CloseIdleConnections)
		resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("http://" + at + "/healthz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", resp.Status)
		}
		return nil
	}
	for end := time.Now().Add(10 * time.Second); ask("127.0.0.4") != nil; {
		if time.Now().After(end) {
			t.Fatal("it does not answer")
		}
	}
	kept := 0
	for range listener.MaxConnsOfClient + 20 {
		if ask("127.0.0.2") == nil {
			kept++
		}
	}
	if kept != listener.MaxConnsOfClient {
		t.Errorf("a client has %d connections, want %d", kept, listener.MaxConnsOfClient)
	}
	if err := ask("127.0.0.3"); err != nil {
		t.Errorf("another client: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
