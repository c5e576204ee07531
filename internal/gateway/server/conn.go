package server

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A conn is a connection of a client. Its goroutine replaces Conn as it learns more. If Conn is of TLS, tls has the
// handshake's result.
type conn struct {
	net.Conn
	accepted net.Conn // as the listener returned it; every goroutine may close it
	port     uint16
	peer     netip.AddrPort // the other end of the TCP connection
	client   netip.Addr     // the peer, or what the PROXY protocol of a trusted peer says
	tls      *tls.ConnectionState
	name     string       // the handshake's server name in lower case
	resets   atomic.Int32 // streams that the client reset, less those that were answered
	idle     atomic.Bool  // it waits for a request, so drain may close it
}

// conns are the open connections.
type conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
}

// add adds a connection, unless there are limit of them.
func (s *conns) add(c *conn, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= limit {
		return false
	}
	s.open[c] = struct{}{}
	return true
}

// remove closes a connection and forgets it.
func (s *conns) remove(c *conn) {
	_ = c.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

func (s *conns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// closeIdle closes the connections that wait for a request.
func (s *conns) closeIdle() { s.closeIf(func(c *conn) bool { return c.idle.Load() }) }

// closeAll closes all connections.
func (s *conns) closeAll() { s.closeIf(func(*conn) bool { return true }) }

func (s *conns) closeIf(f func(*conn) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if f(c) {
			_ = c.accepted.Close()
		}
	}
}

// A prefixed is a connection of which some bytes were read before. The reader has them.
type prefixed struct {
	net.Conn
	r *bufio.Reader
}

func (p *prefixed) Read(b []byte) (int, error) {
	if p.r != nil && p.r.Buffered() > 0 {
		return p.r.Read(b)
	}
	p.r = nil // the buffer is not needed any more
	return p.Conn.Read(b)
}

// proxyProtocol reads the header of the PROXY protocol that a trusted peer sends.
func (s *Server) proxyProtocol(c *conn) error {
	if !s.ProxyProtocol || !s.trusts(c.peer.Addr()) {
		return nil
	}
	if err := c.SetReadDeadline(time.Now().Add(s.HeadTimeout)); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c.Conn, 4<<10) // the longest header of version 2 that the library accepts
	h, err := proxyproto.Read(r)
	if err != nil {
		return err
	}
	if h.Command.IsProxy() {
		if a := addrOf(h.SourceAddr).Addr(); a.IsValid() {
			c.client = a
		}
	}
	if r.Buffered() > 0 {
		c.Conn = &prefixed{c.Conn, r}
	}
	return c.SetReadDeadline(time.Time{})
}

// trusts reports whether a peer's word about its client counts.
func (s *Server) trusts(a netip.Addr) bool { return contains(s.TrustedProxies, a) }

// serve serves a connection until it ends.
func (s *Server) serve(c *conn) {
	if err := s.proxyProtocol(c); err != nil {
		s.metrics.refused.WithLabelValues("proxy-protocol").Inc()
		return
	}
	st := s.state.Load()
	port, ok := st.ports[c.port]
	switch {
	case !ok:
		s.metrics.refused.WithLabelValues("port").Inc()
	case port.TLS:
		s.serveTLS(c, st, port)
	case port.HTTP:
		s.serveHTTP(c)
	default:
		s.serveStream(c, st)
	}
}

// serveHTTP leads a connection to the engine of its version of HTTP.
func (s *Server) serveHTTP(c *conn) {
	if c.tls != nil && c.tls.NegotiatedProtocol == "h2" {
		s.h2conns.serve(c)
		return
	}
	k := &h1conn{srv: s, conn: c}
	k.serve()
}

// serveTLS makes the handshake.
func (s *Server) serveTLS(c *conn, st *state, port gateway.Port) {
	var decided handshake
	rec := &recorder{Conn: c.Conn, socket: newSocket(c.Conn)}
	t := tls.Server(rec, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return s.decide(st, port, hello, rec, &decided)
		},
	})
	if err := c.SetDeadline(time.Now().Add(s.HeadTimeout)); err != nil {
		return
	}
	err := t.Handshake()
	if derr := c.SetDeadline(time.Time{}); derr != nil {
		return
	}
	c.name = decided.name
	switch {
	case decided.Passthrough != nil:
		c.Conn = rec.replay()
		s.relay(c, decided.Passthrough)
	case err != nil:
		s.metrics.handshakeErrors.Inc()
	case decided.Forward != nil:
		c.Conn = t
		s.relay(c, decided.Forward)
	default:
		state := t.ConnectionState()
		c.Conn, c.tls = t, &state
		s.serveHTTP(c)
	}
}
