package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"
)

// readerPool has the buffers of connections to endpoints. An idle connection has none.
type readerPool struct{ sync.Pool }

var readers readerPool

func (p *readerPool) get(r io.Reader) *bufio.Reader {
	b, ok := p.Get().(*bufio.Reader)
	if !ok {
		return bufio.NewReaderSize(r, maxAnswerHead/2)
	}
	b.Reset(r)
	return b
}

func (p *readerPool) put(b *bufio.Reader) {
	b.Reset(nil)
	p.Put(b)
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// copyBuffered is io.Copy with a buffer of the pool.
func copyBuffered(w io.Writer, r io.Reader) (int64, error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *b)
}

// A patientReader reads a client's body. Each piece may take the timeout.
type patientReader struct {
	io.Reader
	k       *h1conn
	timeout time.Duration
}

func (p *patientReader) Read(b []byte) (int, error) {
	if err := p.k.readDeadline(time.Now(), p.timeout); err != nil {
		return 0, err
	}
	return p.Reader.Read(b)
}

// A patientWriter writes to an endpoint. Each piece may take the timeout.
type patientWriter struct {
	c       *upConn
	timeout time.Duration
}

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.c.writeDeadline(time.Now(), p.timeout); err != nil {
		return 0, err
	}
	return p.c.Write(b)
}

// bodyless reports whether an answer has no body, whatever its header says.
func bodyless(code int, head bool) bool {
	return head || code == http.StatusNoContent || code == http.StatusNotModified
}

// relayAnswer sends the endpoint's answer to the client. A short body is read before the first byte is written, so an
// endpoint that fails in its midst can still become a 502.
func (r *h1request) relayAnswer(c *upConn, by deadline) result {
	length, code := r.resp.ContentLength(), r.resp.StatusCode()
	reuse := !r.resp.ConnectionClose() && (length >= -1 || bodyless(code, r.head1))
	r.answerHeader()
	r.status = code
	var err error
	switch {
	case bodyless(code, r.head1):
		r.finishHead()
		err = r.k.write(r.resp.AppendBytes(r.out[:0]))
	case length >= 0 && length <= r.k.srv.MaxBuffered:
		r.finishHead()
		r.out = r.resp.AppendBytes(r.out[:0])
		n := len(r.out)
		if cap(r.out) < n+length {
			r.out = append(make([]byte, 0, n+length+4096), r.out...)
		}
		r.out = r.out[:n+length]
		if _, err := io.ReadFull(c.r, r.out[n:]); err != nil {
			return result{err: err, sent: true}
		}
		err = r.k.write(r.out)
		r.sent = int64(length)
	case length >= 0:
		r.finishHead()
		err = r.relayLong(c, int64(length))
	default:
		err = r.relayUnknown(c, length == -1)
	}
	if err != nil {
		r.close = true
		return result{err: err, sent: true, started: true}
	}
	return result{reuse: reuse}
}

// answerHeader changes the header of the answer for the client.
func (r *h1request) answerHeader() {
	h := &r.resp
	h.ResetConnectionClose()
	if v := h.Peek("Connection"); len(v) > 0 {
		for name := range strings.SplitSeq(string(v), ",") {
			if name = strings.TrimSpace(name); name != "" && !strings.EqualFold(name, "content-length") {
				h.Del(name)
			}
		}
		h.Del("Connection")
	}
	h.Del("Keep-Alive")
	h.Del("Upgrade")
	h.Del("Proxy-Connection")
	h.SetProtocol(http11)
	r.x.respond((*responseHeader)(h))
}

var http11 = []byte("HTTP/1.1")

// finishHead sets what the answer says about the client's connection.
func (r *h1request) finishHead() {
	r.close = r.close || r.k.srv.draining.Load()
	switch {
	case r.close:
		r.resp.SetConnectionClose()
	case r.old:
		r.resp.Set("Connection", "keep-alive")
	}
}

// relayLong relays a body of known length while it arrives. Between two TCP connections the kernel moves the bytes.
func (r *h1request) relayLong(c *upConn, length int64) error {
	r.out = r.resp.AppendBytes(r.out[:0])
	b, _ := c.r.Peek(int(min(int64(c.r.Buffered()), length)))
	r.out = append(r.out, b...)
	if err := r.k.write(r.out); err != nil {
		return err
	}
	r.sent = int64(len(b))
	_, _ = c.r.Discard(len(b))
	for r.sent < length {
		piece := min(length-r.sent, 1<<20)
		now := time.Now()
		if err := c.readDeadline(now, orDefault(r.x.decision.Rule.ReadTimeout, r.k.srv.ReadTimeout)); err != nil {
			return err
		}
		r.k.writeBy = now.Add(r.k.srv.SendTimeout)
		if err := r.k.conn.SetWriteDeadline(r.k.writeBy); err != nil {
			return err
		}
		var n int64
		var err error
		if to, ok := r.k.conn.Conn.(*net.TCPConn); ok && c.tcp != nil {
			n, err = to.ReadFrom(&io.LimitedReader{R: c.tcp, N: piece})
		} else {
			n, err = copyBuffered(r.k.conn, io.LimitReader(c, piece))
		}
		r.sent += n
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// relayUnknown relays a body that is chunked, or ends with the endpoint's connection.
func (r *h1request) relayUnknown(c *upConn, chunked bool) error {
	var body io.Reader = c.r
	if chunked {
		body = httputil.NewChunkedReader(c.r)
	}
	timeout := orDefault(r.x.decision.Rule.ReadTimeout, r.k.srv.ReadTimeout)
	return r.relayStream(body, func() error { return c.readDeadline(time.Now(), timeout) }, func() error {
		if chunked {
			return skipTrailer(c.r)
		}
		return nil
	})
}

// relayStream sends the head, and each piece of a body as it arrives, as a chunk for HTTP/1.1. before is called before each
// read, and end before the last chunk.
func (r *h1request) relayStream(body io.Reader, before, end func() error) error {
	if r.old {
		r.close = true
		r.resp.Del("Transfer-Encoding")
		r.resp.SetContentLength(-2)
	} else {
		r.resp.SetContentLength(-1)
	}
	r.finishHead()
	r.out = r.resp.AppendBytes(r.out[:0])
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	for {
		if err := before(); err != nil {
			return err
		}
		n, err := body.Read(*b)
		r.piece((*b)[:n])
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return err
		}
		if last {
			if err := end(); err != nil {
				return err
			}
			if !r.old {
				r.out = append(r.out, "0\r\n\r\n"...)
			}
		}
		if n > 0 || last {
			if err := r.k.write(r.out); err != nil {
				return err
			}
			r.out = r.out[:0]
		}
		if last {
			return nil
		}
	}
}

// piece adds a piece of a body to the output.
func (r *h1request) piece(b []byte) {
	if len(b) == 0 {
		return
	}
	r.sent += int64(len(b))
	if r.old {
		r.out = append(r.out, b...)
		return
	}
	r.out = append(strconv.AppendInt(r.out, int64(len(b)), 16), '\r', '\n')
	r.out = append(append(r.out, b...), '\r', '\n')
}

// skipTrailer reads the lines after the last chunk, to the empty one.
func skipTrailer(b *bufio.Reader) error {
	for total := 0; total < maxTrailer; {
		line, err := b.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) < 2 || line[len(line)-2] != '\r' {
			return errBareLF
		}
		if len(line) == 2 {
			return nil
		}
		total += len(line)
	}
	return errors.New("the trailer is too long")
}

// reply sends an answer of the gateway itself. Code 0: nothing can be sent any more.
func (r *h1request) reply(a *reply) {
	r.x.reason = a.reason
	if a.code == 0 {
		r.close = true
		return
	}
	r.status = a.code
	if !r.drained() {
		r.close = true
	}
	h := &r.resp
	h.Reset()
	h.SetNoDefaultContentType(true)
	h.SetStatusCode(a.code)
	body := a.body
	for _, x := range a.headers {
		h.Add(x.Name, x.Value)
	}
	if body == "" && a.code >= 300 && !isGRPCReply(a) {
		body = strconv.Itoa(a.code) + " " + http.StatusText(a.code) + "\n"
		h.SetContentType("text/plain; charset=utf-8")
	}
	h.SetContentLength(len(body))
	r.x.mark((*responseHeader)(h))
	r.finishHead()
	r.out = h.AppendBytes(r.out[:0])
	if !bodyless(a.code, r.head1) {
		r.out = append(r.out, body...)
		r.sent = int64(len(body))
	}
	if err := r.k.write(r.out); err != nil {
		r.close = true
	}
	if r.close {
		r.lingering()
	}
}

func isGRPCReply(a *reply) bool {
	return len(a.headers) > 0 && a.headers[0].Value == "application/grpc"
}

// drained reads the rest of the request's body if it is short. It reports whether the connection is at the next request.
func (r *h1request) drained() bool {
	if r.close {
		return false
	}
	if r.head.chunked || r.stream != nil || r.head.expect {
		return false
	}
	left := r.head.length - int64(len(r.body))
	if left <= 0 {
		return true
	}
	if left > int64(r.br.Buffered()) {
		return false
	}
	_, err := r.br.Discard(int(left))
	return err == nil
}

// lingering reads what the client still sends, so that the kernel does not reset the connection before the client has read
// the answer.
func (r *h1request) lingering() {
	if w, ok := r.k.conn.Conn.(closeWriter); ok {
		_ = w.CloseWrite()
	}
	_ = r.k.conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, r.k.conn, lingerBytes)
}

const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)
