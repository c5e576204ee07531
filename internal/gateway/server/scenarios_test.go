package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestIngressScenarios tells two scenarios of kubernetes-sigs/ingress-controller-conformance again: a default backend gets each
// method with its headers, and 100 requests reach all ten endpoints. The other scenarios are in package gateway's testdata.
func TestIngressScenarios(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		echoed := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Server", "echo")
			_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.RequestURI, r.UserAgent())
		})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("echo-service", echoed)}})
		var many []string
		for i := range 10 {
			many = append(many, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "pod-%d", i) }))
		}
		b.rule("/load-balancing", &gateway.Rule{Backends: []gateway.Backend{b.backend("load-balancing", many...)}})
		for _, one := range []struct{ method, path string }{{"GET", "/"}, {"GET", "/sub-path"}, {"POST", "/"}, {"PUT", "/resource"}, {"DELETE", "/resource"}, {"PATCH", "/resource"}} {
			got := b.ask(version, one.method+" "+one.path+" HTTP/1.1\nUser-Agent: Go-http-client/1.1")
			for _, want := range []string{"200", one.method + " shop.example " + one.path + " Go-http-client/1.1", "Content-Type: ", "Server: echo"} {
				if !strings.Contains(got, want) {
					t.Errorf("%s %s: no %s in\n%s", one.method, one.path, want, got)
				}
			}
		}
		seen := map[string]bool{}
		for range 100 {
			got := b.ask(version, "GET /load-balancing HTTP/1.1")
			_, pod, _ := strings.Cut(got, "pod-")
			seen[pod] = true
		}
		if len(seen) != 10 {
			t.Errorf("100 requests reached %v", seen)
		}
	})
}
