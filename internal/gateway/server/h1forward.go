package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// maxAnswerHead is the largest head of an endpoint's answer.
const maxAnswerHead = 64 << 10

// forward sends the request to an endpoint and the answer to the client. A reply is for a request without an answer.
func (r *h1request) forward() *reply {
	x := &r.x
	if answer := r.readBody(); answer != nil {
		return answer
	}
	r.target()
	x.mirror(r.body, r.stream == nil)
	u := x.backend.upstream
	if u.speaksHTTP2() {
		return r.forwardHTTP2()
	}
	for attempt := 1; ; attempt++ {
		e := x.next()
		if e == nil {
			return x.unavailable(attempt)
		}
		result := r.attempt(e)
		if result.err == nil {
			return nil
		}
		if !x.again(result, attempt, r.stream == nil || !result.sent) {
			return x.failure(result)
		}
	}
}

// target writes the path, the query and the host for the endpoint into the request.
func (r *h1request) target() {
	x := &r.x
	if x.host != text(r.req.Host()) {
		r.own()
		r.req.SetHost(x.host)
	}
	uri := text(r.req.RequestURI())
	if strings.HasPrefix(uri, x.path) {
		if rest := uri[len(x.path):]; rest == "" && x.query == "" || len(rest) > 0 && rest[0] == '?' && rest[1:] == x.query {
			return
		}
	}
	r.own()
	if x.query != "" {
		r.req.SetRequestURI(x.path + "?" + x.query)
	} else {
		r.req.SetRequestURI(x.path)
	}
}

// own copies the strings that are parts of the header, because the header changes now.
func (r *h1request) own() {
	x := &r.x
	x.host, x.path, x.query, x.rawHost = strings.Clone(x.host), strings.Clone(x.path), strings.Clone(x.query), strings.Clone(x.rawHost)
	r.host, r.path = strings.Clone(r.host), strings.Clone(r.path)
}

// readBody reads a short body whole. A longer one stays in the connection as a stream.
func (r *h1request) readBody() *reply {
	r.body = r.body[:0]
	if r.head.expect {
		r.req.Del("Expect")
	}
	if r.head.length <= 0 && !r.head.chunked {
		return nil
	}
	if r.head.expect {
		if err := r.k.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			r.close = true
			return r.x.refuse(400, "the client left")
		}
	}
	if err := r.k.readDeadline(time.Now(), r.k.srv.SendTimeout); err != nil {
		r.close = true
		return r.x.refuse(400, "the client left")
	}
	limit := r.x.maxBody()
	if r.head.chunked {
		r.stream = httputil.NewChunkedReader(r.br)
		if limit > 0 {
			r.limit = &limited{r: r.stream, left: limit}
			r.stream = r.limit
		}
		return nil
	}
	if n := int(r.head.length); n <= r.k.srv.MaxBuffered {
		r.body = grow(r.body, n)
		if _, err := io.ReadFull(r.br, r.body); err != nil {
			r.close = true
			return r.x.refuse(408, "the body is late")
		}
		return nil
	}
	r.stream = io.LimitReader(r.br, r.head.length)
	return nil
}

// grow returns a slice of n bytes, in b's memory if it has room.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n, n+n/4)
	}
	return b[:n]
}

// A limited is a body with a bound.
type limited struct {
	r    io.Reader
	left int64
	over bool
}

var errBodyTooLong = errors.New("the body is longer than its limit")

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if l.left -= int64(n); l.left < 0 {
		l.over = true
		return 0, errBodyTooLong
	}
	return n, err
}

// A result says how an attempt failed.
type result struct {
	err     error
	sent    bool // the endpoint may have seen the request
	started bool // the client has seen a part of the answer
	code    int  // an answer that Retry wants to be tried again
	reuse   bool // the endpoint's connection may carry another request
}

// attempt sends the request to one endpoint, and its answer to the client. If a kept connection turns out to be closed, a new
// one is tried: the endpoint has closed it before it saw the request, or the request may be repeated.
func (r *h1request) attempt(e *endpoint) result {
	if r.upgrade {
		return r.tunnel(e)
	}
	now := time.Now()
	by := r.x.deadline(now)
	if c := e.pool.get(now, !idempotent(r.Method())); c != nil {
		res := r.use(e, c, by, now)
		stale := res.err != nil && !res.started && res.code == 0 && !timedOut(res.err)
		if !stale || r.stream != nil || res.sent && !idempotent(r.Method()) {
			return res
		}
		now = time.Now()
	}
	connect := orDefault(r.x.decision.Rule.ConnectTimeout, r.k.srv.ConnectTimeout)
	c, err := e.dial(context.Background(), by.bound(now, connect))
	if err != nil {
		return result{err: err}
	}
	return r.use(e, c, by, now)
}

// use sends the request by a connection, and keeps or closes it.
func (r *h1request) use(e *endpoint, c *upConn, by deadline, now time.Time) result {
	c.r = readers.get(c)
	res := r.exchange(e, c, by, now)
	keep := res.reuse && c.r.Buffered() == 0
	readers.put(c.r)
	c.r = nil
	if keep {
		e.pool.put(c, time.Now())
	} else {
		_ = c.Close()
	}
	return res
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// exchange sends the request by a connection and relays the answer.
func (r *h1request) exchange(e *endpoint, c *upConn, by deadline, now time.Time) result {
	rule := r.x.decision.Rule
	if err := c.writeDeadline(now, by.bound(now, orDefault(rule.SendTimeout, r.k.srv.SendTimeout))); err != nil {
		return result{err: err}
	}
	var upload chan error
	r.req.SetProtocol("HTTP/1.1")
	if r.stream == nil {
		r.out = append(r.req.AppendBytes(r.out[:0]), r.body...)
		if n, err := c.Write(r.out); err != nil {
			return result{err: err, sent: n > 0}
		}
	} else {
		r.out = r.req.AppendBytes(r.out[:0])
		if n, err := c.Write(r.out); err != nil {
			return result{err: err, sent: n > 0}
		}
		upload = r.startUpload(c)
	}
	if err := c.readDeadline(now, by.bound(now, orDefault(rule.ReadTimeout, r.k.srv.ReadTimeout))); err != nil {
		return result{err: err, sent: true}
	}
	err := r.readAnswer(c)
	if err != nil {
		if upload != nil {
			r.stopUpload(c, upload)
		}
		if r.limit != nil && r.limit.over {
			err = errBodyTooLong
		}
		return result{err: err, sent: true}
	}
	e.succeeded()
	if r.x.wantsRetry(r.resp.StatusCode()) && r.stream == nil {
		return result{err: errRetryCode, sent: true, code: r.resp.StatusCode()}
	}
	if upload == nil {
		return r.relayAnswer(c, by)
	}
	// An endpoint that answers before it has the whole body makes the rest of the body useless.
	whole := awaitUpload(upload)
	r.close = r.close || !whole
	res := r.relayAnswer(c, by)
	if !whole {
		r.stopUpload(c, upload)
		r.lingering()
		res.reuse = false
	}
	return res
}

// awaitUpload reports whether the body was sent whole. It waits a little, because the upload may just be about to end.
func awaitUpload(done chan error) bool {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case err := <-done:
		done <- err // for stopUpload
		return err == nil
	case <-t.C:
		return false
	}
}

var errRetryCode = errors.New("the answer's status is to be tried again")

// startUpload sends a streamed body in a goroutine, because the endpoint may answer before it has the whole body.
func (r *h1request) startUpload(c *upConn) chan error {
	done := make(chan error, 1)
	stream, chunked, timeout := r.stream, r.head.chunked, r.k.srv.SendTimeout
	go func() {
		var w io.Writer = &patientWriter{c, timeout}
		var err error
		if chunked {
			cw := httputil.NewChunkedWriter(w)
			if _, err = copyBuffered(cw, &patientReader{stream, r.k, timeout}); err == nil {
				err = cw.Close()
			}
			if err == nil {
				err = r.finishTrailer(w)
			}
		} else {
			var n int64
			n, err = copyBuffered(w, &patientReader{stream, r.k, timeout})
			if err == nil && n < r.head.length {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			_ = c.Close() // the endpoint must not take a part for the whole
		}
		done <- err
	}()
	return done
}

// stopUpload ends the upload. The client's connection is not at the end of the body, so it ends too.
func (r *h1request) stopUpload(c *upConn, done chan error) {
	r.close = true
	_ = r.k.conn.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	r.k.readBy = time.Time{}
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	<-done
}

// maxTrailer is the longest trailer of a body.
const maxTrailer = 8 << 10

// finishTrailer reads the client's trailer and forwards an empty one: a trailer could hold a header that was checked before
// the body.
func (r *h1request) finishTrailer(w io.Writer) error {
	if err := skipTrailer(r.br); err != nil {
		return err
	}
	_, err := w.Write([]byte("\r\n"))
	return err
}

// readAnswer reads the head of the answer, after informational ones.
func (r *h1request) readAnswer(c *upConn) error {
	for range 8 {
		r.resp.Reset()
		r.resp.SetNoDefaultContentType(true)
		if err := r.resp.Read(c.r); err != nil {
			return err
		}
		code := r.resp.StatusCode()
		if code == http.StatusSwitchingProtocols {
			return errors.New("the endpoint switches protocols without being asked")
		}
		if code >= 200 {
			return nil
		}
		if code != http.StatusContinue && !r.old {
			r.out = r.resp.AppendBytes(r.out[:0])
			if err := r.k.write(r.out); err != nil {
				return err
			}
		}
	}
	return errors.New("the endpoint sends informational answers only")
}

// timedOut reports whether an error is a deadline's.
func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, fasthttp.ErrTimeout) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}
