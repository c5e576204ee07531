package server

import (
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestForward: a request reaches the endpoint with the headers that tell about its client, and its answer comes back.
func TestForward(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
		for range 3 {
			got := b.ask(version, "POST /cart?item=1 HTTP/1.1\nX-Test: yes\nX-Forwarded-For: 1.2.3.4\nX-Real-IP: 1.2.3.4\n\nhello")
			for _, want := range []string{"200\n", "POST /cart?item=1\n", "Host: shop.example\n", "X-Test: yes\n", "X-Forwarded-For: 127.0.0.1\n", "X-Forwarded-Proto: http\n", "X-Forwarded-Host: shop.example\n", "X-Real-Ip: 127.0.0.1\n", "\nhello"} {
				if !strings.Contains(got, want) {
					t.Fatalf("no %q in:\n%s", want, got)
				}
			}
			if strings.Contains(got, "1.2.3.4") {
				t.Fatalf("the backend believes a client's X-Forwarded-For:\n%s", got)
			}
		}
	})
}
