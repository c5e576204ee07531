package server

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"sync"
	"time"
)

// An h1conn is the engine of HTTP/1.x for one connection of a client.
type h1conn struct {
	srv     *Server
	conn    *conn
	socket  *socket // nil over TLS
	readBy  time.Time
	writeBy time.Time
	// fd is not 0 while the first bytes of a request are read without waiting. See wait.
	fd uintptr
}

// serve serves the requests of the connection, one after the other.
func (k *h1conn) serve() {
	k.unwrap()
	for first := true; ; first = false {
		r, err := k.wait(first)
		if err != nil {
			return
		}
		if first && k.conn.tls == nil && r.preface() {
			k.conn.Conn = &prefixed{k.conn.Conn, r.detach()}
			k.srv.h2conns.serve(k.conn)
			return
		}
		more := true
		for more {
			more = r.serve()
			if more && r.br.Buffered() == 0 {
				break // no further request is here yet, so the buffers may serve another connection
			}
		}
		r.put()
		if !more { // while the server drains, each answer ends its connection
			return
		}
		k.unwrap()
	}
}

// unwrap prepares to wait without a buffer, once the bytes that the PROXY protocol's reader has read too many are used up.
func (k *h1conn) unwrap() {
	if p, ok := k.conn.Conn.(*prefixed); ok && (p.r == nil || p.r.Buffered() == 0) {
		k.conn.Conn = p.Conn
	}
	if k.socket == nil {
		k.socket = newSocket(k.conn.Conn)
	}
}

// errAgain says that no byte is there yet.
var errAgain = errors.New("no data yet")

// Read reads from the connection. It is the reader below an h1request's buffer.
func (k *h1conn) Read(b []byte) (int, error) {
	switch {
	case k.fd != 0:
		return rawRead(k.fd, b)
	case k.socket != nil:
		return k.socket.Read(b)
	}
	return k.conn.Read(b)
}

// wait waits for the first bytes of a request, and returns a request with these bytes in its buffer. An idle connection
// has no buffer: the function asks for one only while it tries to read.
func (k *h1conn) wait(first bool) (*h1request, error) {
	timeout := k.srv.IdleTimeout
	if first {
		timeout = k.srv.HeadTimeout
	}
	if err := k.readDeadline(time.Now(), timeout); err != nil {
		return nil, err
	}
	k.conn.idle.Store(true)
	defer k.conn.idle.Store(false)
	if k.srv.closing.Load() { // closeIdle may have looked before
		return nil, net.ErrClosed
	}
	var r *h1request
	var err error
	if k.socket == nil {
		r = getRequest(k)
		_, err = r.br.Peek(1)
	} else if rerr := k.socket.raw.Read(func(fd uintptr) bool {
		r = getRequest(k)
		k.fd = fd
		_, err = r.br.Peek(1)
		k.fd = 0
		if err != errAgain {
			return true
		}
		r.put()
		r, err = nil, nil
		return false
	}); rerr != nil {
		err = rerr
	}
	if err != nil && r != nil {
		r.put()
	}
	return r, err
}

func (k *h1conn) readDeadline(now time.Time, timeout time.Duration) error {
	if coarse(k.readBy, now, timeout) {
		return nil
	}
	k.readBy = now.Add(timeout)
	return k.conn.SetReadDeadline(k.readBy)
}

// write writes to the client.
func (k *h1conn) write(b []byte) error {
	now := time.Now()
	if !coarse(k.writeBy, now, k.srv.SendTimeout) {
		k.writeBy = now.Add(k.srv.SendTimeout)
		if err := k.conn.SetWriteDeadline(k.writeBy); err != nil {
			return err
		}
	}
	if k.socket != nil {
		_, err := k.socket.Write(b)
		return err
	}
	_, err := k.conn.Write(b)
	return err
}

// requests are the buffers of requests in progress.
var requests = sync.Pool{New: func() any {
	r := &h1request{}
	r.req.SetNoDefaultContentType(true)
	r.br = bufio.NewReaderSize(nil, 4<<10)
	return r
}}

func getRequest(k *h1conn) *h1request {
	r := requests.Get().(*h1request)
	if r.br.Size() < k.srv.MaxHead {
		r.br = bufio.NewReaderSize(k, k.srv.MaxHead)
	} else {
		r.br.Reset(k)
	}
	r.k = k
	r.x.srv, r.x.in, r.x.header = k.srv, r, (*requestHeader)(&r.req)
	return r
}

// maxKept is the largest buffer that is kept for another request.
const maxKept = 128 << 10

func (r *h1request) put() {
	r.x.reset()
	r.x.srv, r.x.in, r.x.header = nil, nil, nil
	r.k = nil
	r.br.Reset(nil)
	if cap(r.out) > maxKept {
		r.out = nil
	}
	if cap(r.body) > maxKept {
		r.body = nil
	}
	requests.Put(r)
}

// preface reports whether the connection begins as HTTP/2 with prior knowledge.
func (r *h1request) preface() bool {
	const text = "PRI * HTTP/2.0\r\n"
	b, _ := r.br.Peek(r.br.Buffered())
	if !bytes.HasPrefix([]byte(text), b[:min(len(b), len(text))]) {
		return false
	}
	b, _ = r.br.Peek(len(text)) // no method of HTTP/1.x begins with PRI in use, so to wait for the rest is safe
	return string(b) == text
}

// detach takes the buffered bytes to a buffer of their own, and gives r back.
func (r *h1request) detach() *bufio.Reader {
	b, _ := r.br.Peek(r.br.Buffered())
	own := bufio.NewReaderSize(bytes.NewReader(bytes.Clone(b)), max(len(b), 16))
	_, _ = own.Peek(len(b))
	r.put()
	return own
}

// readHead reads the head of a request into the buffer, and returns its length.
func (r *h1request) readHead() (int, error) {
	if b, err := r.br.Peek(2); err == nil && string(b) == "\r\n" {
		_, _ = r.br.Discard(2) // a client may send an empty line after a body (RFC 9112, section 2.2)
	}
	searched := 0
	for deadline := false; ; {
		b, _ := r.br.Peek(r.br.Buffered())
		if i := bytes.Index(b[searched:], []byte("\r\n\r\n")); i >= 0 {
			if n := searched + i + 4; n <= r.k.srv.MaxHead {
				return n, nil
			}
			return 0, errHeadLength
		}
		if err := endings(b); err != nil {
			return 0, err
		}
		searched = max(len(b)-3, 0)
		if len(b) >= r.k.srv.MaxHead {
			return 0, errHeadLength
		}
		if !deadline {
			// The whole head has to arrive by then, so a client that sends byte by byte gains nothing.
			deadline = true
			r.k.readBy = time.Now().Add(r.k.srv.HeadTimeout)
			if err := r.k.conn.SetReadDeadline(r.k.readBy); err != nil {
				return 0, err
			}
		}
		if _, err := r.br.Peek(len(b) + 1); err != nil {
			return 0, err
		}
	}
}

// endings checks the line endings of an incomplete head: one that is wrong is refused at once, because the end of the head
// would never come.
func endings(b []byte) error {
	for i := 0; ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return nil
		}
		if n == 0 || b[i+n-1] != '\r' {
			return errBareLF
		}
		i += n + 1
	}
}
