package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A handover is the listener of the HTTP/2 server: it gets the connections that serve hands over.
type handover struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover() *handover { return &handover{conns: make(chan net.Conn), done: make(chan struct{})} }

// A handed is a connection that the HTTP/2 server has. closed ends serve.
type handed struct {
	net.Conn
	of     *conn
	closed chan struct{}
	once   sync.Once
}

// Close implements net.Conn.
func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}

// serve hands a connection over, and returns when it is closed.
func (h *handover) serve(c *conn) {
	k := &handed{Conn: c.Conn, of: c, closed: make(chan struct{})}
	select {
	case h.conns <- k:
		<-k.closed
	case <-h.done:
	}
}

// Accept implements net.Listener, as do the next methods.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }

type connKey struct{}

// newH2 returns the HTTP/2 server. The connections are already decrypted, so it sees clear text only.
func (s *Server) newH2() *http.Server {
	h := &http.Server{
		Handler:           http.HandlerFunc(s.serveH2),
		ReadHeaderTimeout: s.HeadTimeout,
		IdleTimeout:       s.IdleTimeout,
		MaxHeaderBytes:    s.MaxHead,
		Protocols:         &http.Protocols{},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 250, SendPingTimeout: s.IdleTimeout, PingTimeout: 15 * time.Second, WriteByteTimeout: s.SendTimeout},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*handed).of)
		},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	h.Protocols.SetUnencryptedHTTP2(true)
	return h
}

// An h2request is the engine's view of a request of HTTP/2.
type h2request struct {
	req    *http.Request
	conn   *conn
	host   string
	path   string
	client netip.Addr
	x      exchange
	w      *countingWriter

	early    sync.Mutex // held while an informational answer is written
	answered bool       // no informational answer may come any more
}

// Method implements gateway.Request, as do the next methods.
func (r *h2request) Method() string { return r.req.Method }

// Host implements gateway.Request.
func (r *h2request) Host() string { return r.host }

// Path implements gateway.Request.
func (r *h2request) Path() string { return r.path }

// ServerName implements gateway.Request.
func (r *h2request) ServerName() string { return r.conn.name }

// Client implements gateway.Request.
func (r *h2request) Client() netip.Addr { return r.client }

// Query implements gateway.Request.
func (r *h2request) Query(name string) (string, bool) { return queryValue(r.req.URL.RawQuery, name) }

// Header implements gateway.Request.
func (r *h2request) Header(name string) (string, bool) {
	if name == "Host" {
		return r.req.Host, true
	}
	v, ok := r.req.Header[name]
	if !ok {
		return "", false
	}
	return strings.Join(v, ","), true
}

// A netHeader is net/http's header as a header.
type netHeader struct{ http.Header }

// Get implements header: several lines are joined.
func (h netHeader) Get(name string) string { return strings.Join(h.Header[name], ", ") }

// A countingWriter notes the answer's status and length.
type countingWriter struct {
	http.ResponseWriter
	status int
	sent   int64
}

// WriteHeader implements http.ResponseWriter.
func (w *countingWriter) WriteHeader(code int) {
	if code >= 200 {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements io.Writer.
func (w *countingWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.sent += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serveH2 serves one request.
func (s *Server) serveH2(rw http.ResponseWriter, req *http.Request) {
	w := &countingWriter{ResponseWriter: rw}
	c := req.Context().Value(connKey{}).(*conn)
	defer s.countReset(c, req)
	r := &h2request{req: req, conn: c, w: w}
	x := &r.x
	x.srv, x.in, x.header, x.started = s, r, netHeader{req.Header}, time.Now()
	x.port, x.tls, x.peer = c.port, c.tls != nil, c.peer.Addr()
	if code, reason := r.view(); code != 0 {
		s.metrics.badRequests.WithLabelValues(reason4xx(code)).Inc()
		x.write(w, &reply{code: code, reason: reason})
		return
	}
	answer := x.begin()
	if answer == nil {
		answer = x.choose()
	}
	if answer == nil {
		answer = r.readBody()
	}
	if answer != nil {
		x.write(w, answer)
	} else {
		s.proxyH2(r)
	}
	x.end(w.status, w.sent)
}

// maxResets is how many more streams of a connection a client may reset than it lets be answered. Each costs an endpoint a
// request, so a client that only resets loses its connection.
const maxResets = 200

// countReset counts a stream at its end.
func (s *Server) countReset(c *conn, req *http.Request) {
	switch {
	case req.Context().Err() == nil:
		if c.resets.Load() > 0 {
			c.resets.Add(-1)
		}
	case c.resets.Add(1) == maxResets:
		s.metrics.refused.WithLabelValues("resets").Inc()
		_ = c.accepted.Close()
	}
}

// view prepares the view. The checks are those of HTTP/1.x.
func (r *h2request) view() (code int, reason string) {
	req, x := r.req, &r.x
	s := x.srv
	if req.Method == http.MethodConnect {
		return http.StatusMethodNotAllowed, "CONNECT"
	}
	authority := req.Host
	var ok bool
	if r.host, ok = canonicalHost(authority); !ok {
		return http.StatusBadRequest, "the host is not valid"
	}
	x.rawHost = authority
	target := req.RequestURI
	path, query, _ := strings.Cut(target, "?")
	if strings.IndexByte(query, '#') >= 0 {
		return http.StatusBadRequest, "the target has a fragment"
	}
	x.query = query
	req.URL.RawQuery = query
	if r.path, ok = gateway.Normalise(path); !ok {
		return http.StatusBadRequest, "the path is not valid"
	}
	trusted := s.trusts(x.peer)
	r.client = r.conn.client
	if trusted {
		r.client = s.clientOf(r.client, x.peer, x.header.Get("X-Forwarded-For"))
	}
	if code, reason := r.fields(trusted); code != 0 {
		return code, reason
	}
	te := req.Header.Get("Te")
	removeHop(req.Header)
	if strings.EqualFold(te, "trailers") { // gRPC servers ask for it
		req.Header.Set("Te", "trailers")
	}
	if v := req.Header["Cookie"]; len(v) > 1 { // HTTP/2 may split it (RFC 9113, section 8.2.3)
		req.Header.Set("Cookie", strings.Join(v, "; "))
	}
	if v, ok := req.Header["Content-Length"]; ok && (len(v) != 1 || v[0] != strconv.FormatInt(req.ContentLength, 10)) {
		return http.StatusBadRequest, "the Content-Length is not the body's"
	}
	x.bodyLength = req.ContentLength
	return 0, ""
}

// fields checks the header's fields, and drops the fields that only a trusted proxy may send.
func (r *h2request) fields(trusted bool) (code int, reason string) {
	h := r.req.Header
	for _, v := range h["Host"] { // the host is in :authority
		if v != r.req.Host {
			return http.StatusBadRequest, "there are two hosts"
		}
	}
	delete(h, "Host")
	for name, values := range h {
		if isClaim(name, trusted) {
			delete(h, name)
			continue
		}
		for _, v := range values {
			// A parser of HTTP/1.1 would remove the space, so the backend would see another value than the table.
			if v != "" && (blank(v[0]) || blank(v[len(v)-1])) {
				return http.StatusBadRequest, "a header's value has a space at its end"
			}
		}
	}
	return 0, ""
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

// readBody reads a short body whole, so that it can be sent again.
func (r *h2request) readBody() *reply {
	n := r.req.ContentLength
	limit := r.x.maxBody()
	switch {
	case n == 0:
		r.req.Body = http.NoBody
	case n > 0 && n <= int64(r.x.srv.MaxBuffered):
		b := make([]byte, n)
		if _, err := io.ReadFull(r.req.Body, b); err != nil {
			return r.x.refuse(408, "the body is late")
		}
		r.req.Body = newWhole(b)
	case limit > 0:
		r.req.Body = &limitedBody{limited{r: r.req.Body, left: limit}, r.req.Body}
	}
	w, whole := r.req.Body.(*wholeBody)
	switch {
	case whole:
		r.x.mirror(w.bytes, true)
	default:
		r.x.mirror(nil, r.req.Body == http.NoBody)
	}
	return nil
}

// write sends an answer of the gateway itself.
func (x *exchange) write(w *countingWriter, a *reply) {
	x.reason = a.reason
	h := netHeader{w.Header()}
	for _, f := range a.headers {
		h.Add(f.Name, f.Value)
	}
	x.mark(h)
	body := a.body
	if body == "" && a.code >= 300 {
		body = a.text(h)
	}
	w.WriteHeader(max(a.code, 200))
	if body != "" {
		_, _ = io.WriteString(w, body) // the client may have left
	}
}

// text returns the text for people of an answer without a body, and says so in the header. A gRPC status has none.
func (a *reply) text(h header) string {
	if isGRPCReply(a) {
		return ""
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	return strconv.Itoa(a.code) + " " + http.StatusText(a.code) + "\n"
}
