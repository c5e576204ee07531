package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

// TestDrain: after the end is asked for, readiness fails, new connections are still served, kept ones end after their answer, and
// a request in progress gets its answer.
func TestDrain(t *testing.T) {
	b := start(t, Config{DrainDelay: 2 * time.Second})
	if b.srv.Ready() == nil {
		t.Error("ready without a table")
	}
	entered := make(chan bool)
	at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- true
			<-time.After(2400 * time.Millisecond)
		}
		echo(w, r)
	})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
	if err := b.srv.Ready(); err != nil {
		t.Error(err)
	}
	kept := b.dial()
	r := bufio.NewReader(kept)
	began := time.Now()
	ask := func() *http.Response {
		t.Helper()
		_, _ = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err, time.Since(began))
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp
	}
	if ask().Close {
		t.Error("a connection ends without reason")
	}
	slow := make(chan string, 2)
	for _, version := range []int{1, 2} {
		go func() { slow <- b.ask(version, "GET /slow HTTP/1.1") }()
		<-entered
	}
	ended := make(chan bool)
	go func() {
		b.stop()
		close(ended)
	}()
	for b.srv.Ready() == nil {
		time.Sleep(time.Millisecond)
	}
	for version := range 2 {
		if got := b.ask(version+1, "GET / HTTP/1.1"); !strings.HasPrefix(got, "200") {
			t.Errorf("HTTP/%d while draining: %s", version+1, got)
		}
	}
	if !ask().Close {
		t.Error("the kept connection is not told to end")
	}
	for range 2 {
		if got := <-slow; !strings.HasPrefix(got, "200") {
			t.Error(got)
		}
	}
	<-ended
}

// TestApplyLive: through 500 changes of routes and endpoints no request of either engine fails.
func TestApplyLive(t *testing.T) {
	b := start(t, Config{})
	one, two := serveHTTP(t, echo), serveHTTP(t, echo)
	back := b.backend("cart", one, two)
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{back}})
	key := api.PortName{Name: api.Name{Namespace: "shop", Name: "cart"}, Port: "http"}
	both := b.endpoints[key]
	var wg sync.WaitGroup
	var stop atomic.Bool
	var n atomic.Int32
	for _, version := range []int{1, 2} {
		c := b.client(version)
		wg.Go(func() {
			for !stop.Load() {
				if got := get(c, fmt.Sprintf("http://127.0.0.1:%d/x", b.port)); !strings.HasPrefix(got, "200 ") {
					t.Error(got)
					return
				}
				n.Add(1)
			}
		})
	}
	for i := range 500 {
		b.table.rules[0].rule = &gateway.Rule{Backends: []gateway.Backend{back}}
		b.endpoints[key] = [][]service.Endpoint{both, both[:1], both[1:]}[i%3]
		b.apply()
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d requests through 500 changes", n.Load())
}

// TestEjection: an endpoint that does not answer loses its requests for a while, but at least half of the endpoints stay.
func TestEjection(t *testing.T) {
	b := start(t, Config{})
	dead := func() string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", dead(), dead(), dead(), serveHTTP(t, echo))}})
	for range 60 {
		if got := b.ask(1, "GET / HTTP/1.1"); !strings.HasPrefix(got, "200") {
			t.Fatal(got)
		}
	}
	if n := b.srv.ejected(); n != 2 {
		t.Errorf("%d of 4 endpoints are ejected, 3 are dead", n)
	}
	if !strings.Contains(b.log.String(), "does not answer") {
		t.Error(b.log.String())
	}
}
