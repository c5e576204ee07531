package server

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// Bounds of copies of requests. Copies beyond them are left out, and counted.
const (
	maxMirrors    = 256
	mirrorTimeout = 15 * time.Second
	maxMirrorBody = 64 << 10
)

// mirror sends copies of the request to the mirrors of its rule and its backend. whole: body is the whole body.
func (x *exchange) mirror(body []byte, whole bool) {
	all := x.decision.Rule.Filters.Mirrors
	for i := range all {
		x.mirrorTo(&all[i], x.rule.mirrors[i].upstream, body, whole)
	}
	for i := range x.backend.Filters.Mirrors {
		m := &x.backend.Filters.Mirrors[i]
		x.mirrorTo(m, x.srv.upstreamOf(&m.Backend), body, whole)
	}
}

func (x *exchange) mirrorTo(m *gateway.Mirror, u *upstream, body []byte, whole bool) {
	if m.Denominator > 0 && weighted(uint64(m.Denominator)) >= uint64(m.Numerator) || m.Backend.Refused != "" {
		return
	}
	e := u.pick(nil, x.started)
	if !whole || e == nil || x.srv.mirroring.Add(1) > maxMirrors {
		if whole && e != nil {
			x.srv.mirroring.Add(-1)
		}
		x.srv.metrics.mirrorsDropped.Inc()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mirrorTimeout)
	req, err := http.NewRequestWithContext(ctx, strings.Clone(x.in.Method()), "http://endpoint/", bytes.NewReader(bytes.Clone(body)))
	if err != nil {
		x.srv.mirroring.Add(-1)
		cancel()
		return
	}
	copyHeader(req.Header, x.in)
	change(netHeader{req.Header}, m.Backend.Filters.RequestHeaders)
	req.URL.Scheme, req.URL.Host = "http", e.text
	if u.tls != nil {
		req.URL.Scheme = "https"
	}
	req.Host = strings.Clone(x.host)
	req.URL.Opaque, req.URL.RawQuery = strings.Clone(cmp.Or(m.Path, x.path)), strings.Clone(x.query)
	srv := x.srv    // x is the next request's when the goroutine runs
	srv.work.Add(1) // the request itself is counted, so Wait cannot have ended
	go func() {
		defer srv.work.Done()
		defer srv.mirroring.Add(-1)
		defer cancel()
		resp, err := u.transport.RoundTrip(req)
		if err != nil {
			return // nobody waits for the answer
		}
		_, _ = io.CopyN(io.Discard, resp.Body, maxMirrorBody)
		_ = resp.Body.Close()
	}()
}
