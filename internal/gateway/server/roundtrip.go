package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// roundTrip sends a request of net/http to an endpoint, and to others as Retry says. The answer's body must be closed.
func (x *exchange) roundTrip(req *http.Request) (*http.Response, *reply) {
	body := newOnce(req.Body)
	x.body = body
	for attempt := 1; ; attempt++ {
		e := x.next()
		if e == nil {
			return nil, x.unavailable(attempt)
		}
		resp, res := x.trip(req, e, body)
		if res.err == nil {
			return resp, nil
		}
		if !x.again(res, attempt, body.rewind()) {
			return nil, x.failure(res)
		}
	}
}

// trip is one attempt.
func (x *exchange) trip(req *http.Request, e *endpoint, body *onceBody) (*http.Response, result) {
	rule := x.decision.Rule
	now := time.Now()
	ctx, cancel := context.WithCancelCause(req.Context())
	by := x.deadline(now)
	timer := time.AfterFunc(by.bound(now, orDefault(rule.ReadTimeout, x.srv.ReadTimeout)+x.srv.ConnectTimeout), func() { cancel(context.DeadlineExceeded) })
	out, target := req.WithContext(ctx), *req.URL // a transport does not change the header
	out.URL, out.RequestURI = &target, ""
	out.URL.Scheme, out.URL.Host = "http", e.text
	if e.up.tls != nil {
		out.URL.Scheme = "https"
	}
	out.URL.Opaque, out.URL.Path, out.URL.RawPath, out.URL.RawQuery, out.URL.ForceQuery = x.path, "", "", x.query, false
	out.Host = x.host
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = body
	}
	var resp *http.Response
	var err error
	sent := true
	if none := out.Body == nil || out.Body == http.NoBody; !e.up.speaksHTTP2() && (none || body.whole != nil) {
		resp, sent, err = e.send(ctx, out, body, by.bound(now, orDefault(rule.ConnectTimeout, x.srv.ConnectTimeout)))
	} else {
		resp, err = e.up.transport.RoundTrip(out)
	}
	if err == nil {
		e.succeeded()
		if x.wantsRetry(resp.StatusCode) && body.replayable() {
			_ = resp.Body.Close()
			timer.Stop()
			cancel(nil)
			return nil, result{err: errRetryCode, sent: true, code: resp.StatusCode}
		}
		if by.at.IsZero() || !timer.Reset(time.Until(by.at)) && ctx.Err() != nil {
			timer.Stop()
		}
		resp.Body = &endedBody{ReadCloser: resp.Body, end: func() { timer.Stop(); cancel(nil) }}
		return resp, result{}
	}
	timer.Stop()
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	cancel(nil)
	var dial *dialError
	if body.over() {
		err = errBodyTooLong
	}
	return nil, result{err: err, sent: sent && !errors.As(err, &dial), started: req.Context().Err() != nil}
}

// An endedBody calls end when it is closed.
type endedBody struct {
	io.ReadCloser
	end func()
}

func (b *endedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// A onceBody is a request's body for several attempts: it stays open when an attempt closes it. The transport of an attempt
// that ended may still read it, so an attempt after the first byte was read needs a body that is held whole.
type onceBody struct {
	io.ReadCloser
	whole []byte // nil: a stream
	limit *limited
	read  atomic.Bool
	mu    sync.Mutex // held while the body is read
	ended bool
}

func newOnce(b io.ReadCloser) *onceBody {
	if w, ok := b.(*wholeBody); ok {
		return &onceBody{ReadCloser: b, whole: w.bytes}
	}
	o := &onceBody{ReadCloser: b}
	if l, ok := b.(*limitedBody); ok {
		o.limit = &l.limited
	}
	return o
}

// Read implements io.Reader.
func (o *onceBody) Read(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return 0, http.ErrBodyReadAfterClose
	}
	o.read.Store(true)
	return o.ReadCloser.Read(b)
}

// Close does nothing. The engine closes the body.
func (o *onceBody) Close() error { return nil }

// stop ends the reading, so that the memory below the body can be used again. The caller wakes a reader that waits.
func (o *onceBody) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}

func (o *onceBody) replayable() bool { return o.ReadCloser == nil || o.whole != nil || !o.read.Load() }

func (o *onceBody) over() bool { return o.limit != nil && o.limit.over }

// rewind prepares the body for another attempt, and reports whether that is possible.
func (o *onceBody) rewind() bool {
	if o.whole != nil {
		o.ReadCloser = newWhole(o.whole)
		o.read.Store(false)
		return true
	}
	return o.replayable()
}

// A wholeBody is a body that is held whole.
type wholeBody struct {
	bytes.Reader
	bytes []byte
}

func newWhole(b []byte) *wholeBody {
	w := &wholeBody{bytes: b}
	w.Reset(b)
	return w
}

// Close implements io.Closer.
func (*wholeBody) Close() error { return nil }

// A limitedBody is a stream with a bound.
type limitedBody struct {
	limited
	io.Closer
}

// forwardHTTP2 forwards a request of HTTP/1.x to an endpoint that speaks HTTP/2.
func (r *h1request) forwardHTTP2() *reply {
	x := &r.x
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.own() // the transport may use them a little longer than the answer
	req, err := http.NewRequestWithContext(ctx, strings.Clone(r.Method()), "http://endpoint/", nil)
	if err != nil {
		return x.refuse(400, "the method is not valid")
	}
	for key, value := range r.req.All() {
		if name := string(key); name != "Host" && name != "Content-Length" && name != "Transfer-Encoding" {
			req.Header[name] = append(req.Header[name], string(value))
		}
	}
	switch {
	case r.stream != nil:
		req.ContentLength = r.head.length
		body := io.Reader(&patientReader{r.stream, r.k, r.k.srv.SendTimeout})
		req.Body = io.NopCloser(body)
		if r.limit != nil {
			req.Body = &limitedBody{limited{r: body, left: r.limit.left}, io.NopCloser(nil)}
		}
		r.close = true // the transport may still read the body when the answer is there
		defer func() {
			_ = r.k.conn.SetReadDeadline(time.Unix(1, 0))
			x.body.stop()
		}()
	case len(r.body) > 0:
		req.ContentLength, req.Body = int64(len(r.body)), newWhole(r.body)
	}
	resp, answer := x.roundTrip(req)
	if answer != nil {
		return answer
	}
	defer resp.Body.Close()
	r.resp.Reset()
	r.resp.SetNoDefaultContentType(true)
	r.resp.SetStatusCode(resp.StatusCode)
	removeHop(resp.Header)
	for name, values := range resp.Header {
		for _, v := range values {
			r.resp.Add(name, v)
		}
	}
	x.respond((*responseHeader)(&r.resp))
	r.status = resp.StatusCode
	if err := r.relayResponse(resp); err != nil {
		r.close = true
		return &reply{code: 0, reason: "the answer ended early"}
	}
	return nil
}

// relayResponse sends the body of a net/http answer.
func (r *h1request) relayResponse(resp *http.Response) error {
	nothing := func() error { return nil }
	if bodyless(resp.StatusCode, r.head1) {
		r.finishHead()
		return r.k.write(r.resp.AppendBytes(r.out[:0]))
	}
	return r.relayStream(resp.Body, nothing, nothing)
}

// removeHop removes the headers that are for one connection only.
func removeHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate"} {
		h.Del(name)
	}
}

var _ gateway.Request = (*h1request)(nil)
