package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"github.com/fairway-net/fairway/internal/gateway"
)

// An h1request is a request of HTTP/1.x in progress, with its buffers. It is the engine's view of the request.
type h1request struct {
	k    *h1conn
	br   *bufio.Reader // of the client's connection
	req  fasthttp.RequestHeader
	resp fasthttp.ResponseHeader
	out  []byte // what goes into one write
	body []byte // a body that is held whole
	x    exchange

	head    head
	head1   bool // method HEAD
	old     bool // HTTP/1.0
	close   bool // the connection ends after this request
	host    string
	path    string
	client  netip.Addr
	stream  io.Reader // the body if it is not whole; nil: it is
	limit   *limited  // the bound of stream; nil: none
	upgrade bool      // to WebSocket
	status  int
	sent    int64
}

// text returns bytes as a string without a copy. The string is valid until the bytes change.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns a string as bytes without a copy. Nobody may change the bytes.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Method implements gateway.Request, as do the next methods.
func (r *h1request) Method() string { return text(r.req.Method()) }

// Host implements gateway.Request.
func (r *h1request) Host() string { return r.host }

// Path implements gateway.Request.
func (r *h1request) Path() string { return r.path }

// ServerName implements gateway.Request.
func (r *h1request) ServerName() string { return r.k.conn.name }

// Client implements gateway.Request.
func (r *h1request) Client() netip.Addr { return r.client }

// Query implements gateway.Request.
func (r *h1request) Query(name string) (string, bool) { return queryValue(r.x.query, name) }

// Header implements gateway.Request.
func (r *h1request) Header(name string) (string, bool) {
	all := r.req.PeekAll(name)
	switch len(all) {
	case 0:
		return "", false
	case 1:
		return text(all[0]), len(all[0]) > 0 || r.has(name)
	}
	var b strings.Builder
	for i, v := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(v)
	}
	return b.String(), true
}

// has reports whether a header is there, for headers that fasthttp keeps in a field of their own.
func (r *h1request) has(name string) bool {
	switch name {
	case "Content-Type", "User-Agent", "Content-Length", "Host", "Connection":
		return len(r.req.Peek(name)) > 0
	}
	return true
}

// queryValue returns the first value of a parameter in a query.
func queryValue(query, name string) (string, bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if key != name {
			if strings.IndexByte(key, '%') < 0 && strings.IndexByte(key, '+') < 0 {
				continue
			}
			if k, err := url.QueryUnescape(key); err != nil || k != name {
				continue
			}
		}
		v, err := url.QueryUnescape(value)
		return v, err == nil
	}
	return "", false
}

// A requestHeader is fasthttp's header as a header.
type requestHeader fasthttp.RequestHeader

func (h *requestHeader) f() *fasthttp.RequestHeader { return (*fasthttp.RequestHeader)(h) }

// Get implements header, as do the next methods.
func (h *requestHeader) Get(name string) string {
	if name == "X-Forwarded-For" || name == "Cookie" {
		return string(bytes.Join(h.f().PeekAll(name), []byte(", ")))
	}
	return string(h.f().Peek(name))
}

// Set implements header. The name is canonical, so fasthttp does not make it canonical again.
func (h *requestHeader) Set(name, value string) { h.f().SetCanonical(bytesOf(name), bytesOf(value)) }

// Add implements header.
func (h *requestHeader) Add(name, value string) { h.f().Add(name, value) }

// Del implements header.
func (h *requestHeader) Del(name string) { h.f().Del(name) }

// A responseHeader is fasthttp's header of an answer as a header.
type responseHeader fasthttp.ResponseHeader

func (h *responseHeader) f() *fasthttp.ResponseHeader { return (*fasthttp.ResponseHeader)(h) }

// Get implements header, as do the next methods.
func (h *responseHeader) Get(name string) string { return string(h.f().Peek(name)) }

// Set implements header.
func (h *responseHeader) Set(name, value string) { h.f().Set(name, value) }

// Add implements header.
func (h *responseHeader) Add(name, value string) { h.f().Add(name, value) }

// Del implements header.
func (h *responseHeader) Del(name string) { h.f().Del(name) }

// serve serves the request whose first bytes are in the buffer. It reports whether the connection may have another one.
func (r *h1request) serve() (more bool) {
	r.x.reset()
	r.stream, r.limit, r.upgrade, r.status, r.sent = nil, nil, false, 0, 0
	r.close, r.old, r.head1 = false, false, false
	r.body = r.body[:0]
	n, err := r.readHead()
	if err == nil {
		b, _ := r.br.Peek(n)
		if r.head, err = inspect(b); err == nil {
			err = r.req.Read(r.br)
		}
	}
	r.x.started = time.Now()
	if err != nil {
		return r.fail(err)
	}
	if code, reason := r.view(); code != 0 {
		return r.bad(code, reason)
	}
	answer := r.x.begin()
	if answer == nil {
		answer = r.x.choose()
	}
	if answer == nil {
		answer = r.forward()
	}
	if answer != nil {
		r.reply(answer)
	}
	r.x.end(r.status, r.sent)
	return !r.close
}

// fail answers a head that cannot be read, and ends the connection.
func (r *h1request) fail(err error) bool {
	var ne interface{ Timeout() bool }
	switch {
	case errors.Is(err, errHeadLength):
		return r.bad(http.StatusRequestHeaderFieldsTooLarge, err.Error())
	case errors.Is(err, errExpect):
		return r.bad(http.StatusExpectationFailed, err.Error())
	case errors.Is(err, errVersion):
		return r.bad(http.StatusHTTPVersionNotSupported, err.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return false
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return r.bad(http.StatusRequestTimeout, "the head is late")
	}
	return r.bad(http.StatusBadRequest, err.Error())
}

// bad refuses a request before it is routed.
func (r *h1request) bad(code int, reason string) bool {
	r.close = true
	r.x.srv.metrics.badRequests.WithLabelValues(reason4xx(code)).Inc()
	r.reply(&reply{code: code, reason: reason})
	return false
}

// view prepares the engine's view of the request. It returns the code of a refusal, or 0.
func (r *h1request) view() (code int, reason string) {
	k := r.k
	x := &r.x
	x.port, x.tls, x.peer = k.conn.port, k.conn.tls != nil, k.conn.peer.Addr()
	r.old = !r.req.IsHTTP11()
	r.head1 = r.req.IsHead()
	r.close = r.req.ConnectionClose() || r.old && !keepAlive(r.req.Peek("Connection"))
	r.req.ResetConnectionClose()
	if r.req.IsConnect() {
		return http.StatusMethodNotAllowed, "CONNECT"
	}
	target, authority := text(r.req.RequestURI()), text(r.req.Host())
	if target[0] != '/' {
		var ok bool
		if authority, target, ok = absolute(target); !ok {
			return http.StatusBadRequest, "the target is no path"
		}
		r.req.SetHost(authority)
	}
	var ok bool
	if r.host, ok = canonicalHost(authority); !ok {
		return http.StatusBadRequest, "the host is not valid"
	}
	x.rawHost = authority
	path := target
	if i := strings.IndexByte(target, '?'); i >= 0 {
		path, x.query = target[:i], target[i+1:]
	}
	if strings.IndexByte(x.query, '#') >= 0 {
		return http.StatusBadRequest, "the target has a fragment"
	}
	if r.path, ok = gateway.Normalise(path); !ok {
		return http.StatusBadRequest, "the path is not valid"
	}
	trusted := k.srv.trusts(x.peer)
	r.client = k.conn.client
	if trusted {
		r.client = k.srv.clientOf(r.client, x.peer, x.header.Get("X-Forwarded-For"))
	}
	if r.head.claims {
		r.dropClaims(trusted)
	}
	r.upgrade = r.head.upgrade && is(r.req.Peek("Upgrade"), "websocket") && r.req.IsGet() && !r.old && r.head.length <= 0 && !r.head.chunked
	if r.head.hop {
		r.dropHop()
	}
	x.bodyLength = max(r.head.length, 0)
	if r.head.chunked {
		x.bodyLength = -1
	}
	return 0, ""
}

func keepAlive(connection []byte) bool {
	return bytes.Contains(bytes.ToLower(connection), []byte("keep-alive"))
}

// absolute splits a target with scheme and host.
func absolute(target string) (authority, path string, ok bool) {
	scheme, rest, found := strings.Cut(target, "://")
	if !found || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", "", false
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return strings.Clone(rest), "/", rest != ""
	case rest[i] == '?':
		return strings.Clone(rest[:i]), "/" + rest[i:], i > 0
	}
	return strings.Clone(rest[:i]), strings.Clone(rest[i:]), i > 0
}

// dropHop removes the headers that are for this connection only, also those that Connection names.
func (r *h1request) dropHop() {
	for _, v := range r.req.PeekAll("Connection") {
		for name := range bytes.SplitSeq(bytes.Clone(v), []byte(",")) {
			if name = bytes.TrimSpace(name); len(name) > 0 && !is(name, "host") && !is(name, "content-length") {
				r.req.DelBytes(name)
			}
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate"} {
		r.req.Del(name)
	}
	if r.upgrade {
		r.req.Set("Connection", "Upgrade")
		r.req.Set("Upgrade", "websocket")
	}
}

// dropClaims removes the headers that only a trusted proxy may send.
func (r *h1request) dropClaims(trusted bool) {
	var drop []string
	for key := range r.req.All() {
		if isClaim(text(key), trusted) {
			drop = append(drop, string(key))
		}
	}
	for _, name := range drop {
		r.req.Del(name)
	}
}
