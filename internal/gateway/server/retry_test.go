package server

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestRetryAlone: a rule with retries tries its only endpoint again. The last answer goes to the client.
func TestRetryAlone(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		var left atomic.Int64
		flaky := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
			if left.Add(-1) >= 0 {
				w.WriteHeader(503)
			}
			_, _ = io.WriteString(w, "the endpoint")
		})
		b.rule("/", &gateway.Rule{Retry: &gateway.Retry{Codes: []int{503}, Attempts: 2}, Backends: []gateway.Backend{b.backend("flaky", flaky)}})
		for failures, want := range []string{"200", "200", "200", "503", "503"} {
			left.Store(int64(failures))
			got := b.ask(version, "GET / HTTP/1.1")
			if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "the endpoint") {
				t.Errorf("%d failures: %s", failures, got)
			}
		}
	})
}
