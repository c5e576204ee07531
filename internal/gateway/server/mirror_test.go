package server

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestMirrorOutlivesRequest: a copy is sent although its request and its connection have ended before.
func TestMirrorOutlivesRequest(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		var copies atomic.Int64
		mirror := serveHTTP(t, func(http.ResponseWriter, *http.Request) { copies.Add(1) })
		web := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "web") })
		b.rule("/", &gateway.Rule{Filters: gateway.Filters{Mirrors: []gateway.Mirror{{Backend: b.backend("mirror", mirror), Numerator: 1, Denominator: 1}}}, Backends: []gateway.Backend{b.backend("web", web)}})
		const requests = 300
		for range requests {
			b.ask(version, "GET / HTTP/1.1")
		}
		for end := time.Now().Add(10 * time.Second); copies.Load() < requests; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d copies of %d requests", copies.Load(), requests)
			}
		}
	})
}
