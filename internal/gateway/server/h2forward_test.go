package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestEarlyHints: an informational answer of an endpoint reaches the client before the answer, and its header does not become
// a part of the answer's.
func TestEarlyHints(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			fmt.Fprint(w, "done")
		}))}})
		var hints []string
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", b.port), nil)
		if err != nil {
			t.Fatal(err)
		}
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h["Link"]))
			return nil
		}}))
		resp, err := b.client(version).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if got := strings.Join(hints, " "); got != "103 [</style.css>]" || string(text) != "done" || resp.Header.Get("Link") != "" {
			t.Errorf("%q %q %v", got, text, resp.Header)
		}
	})
}

// TestTrailersOfHTTP2: trailers reach a client of HTTP/2, whether or not the head has announced them.
func TestTrailersOfHTTP2(t *testing.T) {
	b := start(t, Config{})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		announced := r.URL.Path == "/announced"
		if announced {
			w.Header().Set("Trailer", "X-Sum")
		}
		fmt.Fprint(w, "done")
		w.(http.Flusher).Flush()
		if announced {
			w.Header().Set("X-Sum", "7")
		} else {
			w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
		}
	}))}})
	for _, path := range []string{"/announced", "/sudden"} {
		resp, err := b.client(2).Get(fmt.Sprintf("http://127.0.0.1:%d%s", b.port, path))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "done" || resp.Trailer.Get("X-Sum") != "7" {
			t.Errorf("%s: %q %v %v", path, text, err, resp.Trailer)
		}
	}
}
