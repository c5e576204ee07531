package server

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// An upstreamKey identifies the endpoints of a Service's port and how the server speaks to them.
type upstreamKey struct {
	service  api.PortName
	protocol gateway.Protocol
	tls      *gateway.BackendTLS
}

// An upstream is a Service's port with its endpoints.
type upstream struct {
	srv       *Server
	key       upstreamKey
	tls       *tls.Config // nil: clear text
	transport *http.Transport
	set       atomic.Pointer[endpointSet]
	touched   time.Time // guarded by srv.mu
	turn      atomic.Uint64
	ejected   atomic.Int32
}

// An endpointSet is the list of endpoints at a time. It is immutable.
type endpointSet struct {
	from  []service.Endpoint
	all   []*endpoint
	slots []int32 // indexes of all, as the weights say
	hash  func() []int32
	tags  func() map[string]*endpoint // by the name in cookies
}

// An endpoint is one address of an upstream.
type endpoint struct {
	up     *upstream
	addr   netip.AddrPort
	text   string
	pool   pool
	gone   atomic.Bool // it gets no new requests
	health health
}

// upstreamOf returns the upstream of a backend.
func (s *Server) upstreamOf(b *gateway.Backend) *upstream {
	key := upstreamKey{b.Service, b.Protocol, b.TLS}
	if key.protocol == gateway.WebSocket {
		key.protocol = gateway.HTTP1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.upstreams[key]
	if u == nil {
		u = &upstream{srv: s, key: key}
		if b.TLS != nil {
			u.tls = backendTLS(b.TLS)
		}
		u.transport = u.newTransport()
		u.setEndpoints(s.state.Load().endpoints[key.service])
		s.upstreams[key] = u
	}
	u.touched = time.Now()
	return u
}

// speaksHTTP2 reports whether the endpoints may speak HTTP/2.
func (u *upstream) speaksHTTP2() bool {
	return u.key.protocol == gateway.H2C || u.tls != nil && u.transport.Protocols.HTTP2()
}

// setEndpoints replaces the list. An endpoint that stays keeps its connections and its health. srv.mu is held.
func (u *upstream) setEndpoints(from []service.Endpoint) {
	old := u.set.Load()
	if old != nil && slices.Equal(old.from, from) {
		return
	}
	next := &endpointSet{from: from, all: make([]*endpoint, len(from))}
	known := map[netip.AddrPort]*endpoint{}
	if old != nil {
		for _, e := range old.all {
			known[e.addr] = e
		}
	}
	for i, f := range from {
		e := known[f.Addr]
		if e == nil {
			e = &endpoint{up: u, addr: f.Addr, text: f.Addr.String()}
			e.pool.limit = u.srv.MaxIdlePerEndpoint
		}
		delete(known, f.Addr)
		next.all[i] = e
	}
	next.slots = lb.Slots(nil, from)
	next.hash = sync.OnceValue(func() []int32 { return lb.Maglev(from) })
	next.tags = sync.OnceValue(func() map[string]*endpoint {
		tags := make(map[string]*endpoint, len(next.all))
		for _, e := range next.all {
			tags[e.tag(u.srv.SessionKey)] = e
		}
		return tags
	})
	u.set.Store(next)
	for _, e := range known {
		e.gone.Store(true)
		e.pool.close()
		if e.health.recover() {
			u.ejected.Add(-1)
		}
	}
	if len(known) > 0 {
		u.transport.CloseIdleConnections()
	}
}

// pick returns an endpoint for a request, by round robin over the weighted list. It avoids the endpoints that were tried,
// and the ejected endpoints as long as another is left. nil: there is none.
func (u *upstream) pick(tried []*endpoint, now time.Time) *endpoint {
	set := u.set.Load()
	n := uint64(len(set.slots))
	if n == 0 {
		return nil
	}
	start := u.turn.Add(1)
	var spare *endpoint
	for i := range n {
		e := set.all[set.slots[(start+i)%n]]
		if len(tried) > 0 && slices.Contains(tried, e) {
			continue
		}
		if u.ejected.Load() == 0 || e.health.usable(u, now) {
			return e
		}
		if spare == nil {
			spare = e
		}
	}
	return spare
}

// pickHash returns the endpoint of a key, the same as long as the endpoints stay, or the next that is usable.
func (u *upstream) pickHash(hash uint32, tried []*endpoint, now time.Time) *endpoint {
	set := u.set.Load()
	list := set.hash()
	if len(list) == 0 {
		return nil
	}
	at := lb.Pick(hash, len(list))
	for i := range min(len(list), 64) {
		e := set.all[list[(at+i)%len(list)]]
		if !slices.Contains(tried, e) && e.health.usable(u, now) {
			return e
		}
	}
	return u.pick(tried, now)
}

// clean closes connections that were idle for too long.
func (u *upstream) clean(now time.Time) {
	for _, e := range u.set.Load().all {
		e.pool.clean(now)
	}
}

// close closes the idle connections for good.
func (u *upstream) close() {
	for _, e := range u.set.Load().all {
		e.pool.close()
	}
	u.transport.CloseIdleConnections()
}

// next returns the endpoint for the next attempt: the session's, the hash's, or the next in turn. A rule with retries begins
// again with the first endpoint after the last.
func (x *exchange) next() *endpoint {
	u := x.backend.upstream
	rule := x.decision.Rule
	var e *endpoint
	switch {
	case rule.Session != nil && len(x.tried) == 0:
		e = x.sessionEndpoint(u)
	case rule.HashBy != "":
		e = u.pickHash(x.hashKey(), x.tried, x.started)
	default:
		e = u.pick(x.tried, x.started)
	}
	if e == nil && rule.Retry != nil && !rule.Retry.ConnectOnly {
		e = u.pick(nil, x.started) // all were tried; Attempts ends it
	}
	if e == nil {
		return nil
	}
	x.endpoint = e
	x.tried = append(x.tried, e)
	if rule.Session != nil && len(x.tried) > 1 {
		x.session = e.tag(x.srv.SessionKey)
	}
	return e
}
