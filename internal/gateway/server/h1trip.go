package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// send sends a request of net/http by a connection of the endpoint's pool of HTTP/1.1. The body is none, or held whole. sent
// reports whether the endpoint may have seen the request. net/http's Transport would need two more goroutines and four
// channels for it.
func (e *endpoint) send(ctx context.Context, out *http.Request, body *onceBody, connect time.Duration) (resp *http.Response, sent bool, err error) {
	safe := idempotent(out.Method)
	if c := e.pool.get(time.Now(), !safe); c != nil {
		resp, sent, err = e.sendBy(ctx, c, out)
		// The endpoint may have closed the kept connection before it saw the request.
		if err == nil || ctx.Err() != nil || sent && !safe || !body.rewind() {
			return resp, sent, err
		}
		if out.Body != nil && out.Body != http.NoBody {
			out.Body = body
		}
	}
	c, err := e.dial(ctx, connect)
	if err != nil {
		return nil, false, &dialError{err}
	}
	return e.sendBy(ctx, c, out)
}

var requestBuffers = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// sendBy sends the request by a connection and reads the head of the answer. The end of ctx ends both, and the answer's body.
func (e *endpoint) sendBy(ctx context.Context, c *upConn, out *http.Request) (resp *http.Response, sent bool, err error) {
	if err := c.noDeadlines(); err != nil {
		_ = c.Close()
		return nil, false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	head := &headReader{c: c, left: maxAnswerHead}
	c.r = readers.get(head)
	kept := &keptBody{e: e, c: c, stop: stop}
	b := requestBuffers.Get().(*bytes.Buffer)
	defer func() {
		b.Reset()
		if b.Cap() <= maxKept {
			requestBuffers.Put(b)
		}
		if err != nil {
			kept.end(false)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
	}()
	if err := out.Write(b); err != nil {
		return nil, false, err
	}
	if n, err := c.Write(b.Bytes()); err != nil {
		return nil, n > 0, err
	}
	if resp, err = readResponse(ctx, c, out); err != nil {
		return nil, true, err
	}
	head.left = -1
	kept.ReadCloser, kept.reuse = resp.Body, !resp.Close
	if resp.Body == http.NoBody {
		kept.end(true)
	} else {
		resp.Body = kept
	}
	return resp, true, nil
}

// readResponse reads the head of the answer, after informational ones.
func readResponse(ctx context.Context, c *upConn, out *http.Request) (*http.Response, error) {
	for range 8 {
		resp, err := http.ReadResponse(c.r, out)
		if err != nil {
			return nil, err
		}
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the endpoint switches protocols without being asked")
		case resp.StatusCode >= 200:
			return resp, nil
		}
		if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(resp.StatusCode, map[string][]string(resp.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("the endpoint sends informational answers only")
}

// noDeadlines removes the deadlines that another request has set.
func (c *upConn) noDeadlines() error {
	if c.readBy.IsZero() && c.writeBy.IsZero() {
		return nil
	}
	c.readBy, c.writeBy = time.Time{}, time.Time{}
	return c.SetDeadline(time.Time{})
}

// A headReader bounds the head of an answer. left is negative once the head is read.
type headReader struct {
	c    *upConn
	left int
}

// Read implements io.Reader.
func (h *headReader) Read(b []byte) (int, error) {
	if h.left == 0 {
		return 0, errHeadLength
	}
	if h.left > 0 && len(b) > h.left {
		b = b[:h.left]
	}
	n, err := h.c.Read(b)
	if h.left > 0 {
		h.left -= n
	}
	return n, err
}

// A keptBody is the body of an answer. Its end gives the connection back to the pool.
type keptBody struct {
	io.ReadCloser
	e     *endpoint
	c     *upConn
	stop  func() bool // false: the request's context has ended, and so has the connection
	reuse bool
	ended bool
}

// Read implements io.Reader.
func (k *keptBody) Read(b []byte) (int, error) {
	if k.ended {
		return 0, io.EOF
	}
	n, err := k.ReadCloser.Read(b)
	if err != nil {
		k.end(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close implements io.Closer. A body that was not read to its end ends the connection.
func (k *keptBody) Close() error {
	k.end(false)
	return nil
}

// end keeps the connection if the answer was read whole, or closes it.
func (k *keptBody) end(whole bool) {
	if k.ended {
		return
	}
	k.ended = true
	keep := k.stop() && whole && k.reuse && k.c.r.Buffered() == 0
	readers.put(k.c.r)
	k.c.r = nil
	if keep {
		k.e.pool.put(k.c, time.Now())
	} else {
		_ = k.c.Close()
	}
}
