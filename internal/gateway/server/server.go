package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

// Endpoints maps each port of a Service to its endpoints. It is immutable.
type Endpoints map[api.PortName][]service.Endpoint

// A Table is the part of *gateway.Table that the server needs.
type Table interface {
	Ports() []gateway.Port
	Lookup(port uint16, r gateway.Request) gateway.Decision
	Handshake(port uint16, serverName string) (gateway.Handshake, bool)
	Stream(port uint16, proto api.Proto) (gateway.Stream, bool)
}

// Config is the setup of a Server. Zero values stand for the defaults in defaults.
type Config struct {
	Log *slog.Logger
	// AccessLog gets one line for each request of a rule whose access log is on; nil: no access log.
	AccessLog *slog.Logger
	// LogRequests is the access log of rules without a setting of their own.
	LogRequests bool
	// Address is the address of all listeners; the zero value: all addresses.
	Address netip.Addr
	// TrustedProxies are peers whose X-Forwarded-For and PROXY protocol count.
	TrustedProxies []netip.Prefix
	// ProxyProtocol: connections of trusted peers begin with a header of the PROXY protocol, version 1 or 2.
	ProxyProtocol bool
	// SessionKey signs session cookies. Gateways with the same key accept each other's cookies; empty: a random key.
	SessionKey []byte
	// MaxHead is the largest head of a request in bytes.
	MaxHead int
	// MaxBuffered is the largest body that is held whole. Longer bodies are streamed, and not sent again.
	MaxBuffered int
	// MaxConns is the number of connections of clients at a time.
	MaxConns int
	// MaxIdlePerEndpoint is the number of idle connections that are kept to an endpoint.
	MaxIdlePerEndpoint int
	// HeadTimeout bounds the arrival of a request's head, and a TLS handshake.
	HeadTimeout time.Duration
	// IdleTimeout bounds the wait for the next request of a connection.
	IdleTimeout time.Duration
	// ConnectTimeout, SendTimeout and ReadTimeout bound the steps of an attempt if a rule has no bound of its own.
	ConnectTimeout, SendTimeout, ReadTimeout time.Duration
	// DrainDelay is the time in which the server still accepts connections after its context ended.
	DrainDelay time.Duration
	// DrainTimeout is the time after DrainDelay in which requests and streams may end.
	DrainTimeout time.Duration
	// AllowLoopback lets forward authentication use servers on loopback and link-local addresses, for tests.
	AllowLoopback bool
}

// defaults fills the zero values.
func (c Config) defaults() (Config, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for field, value := range map[*int]int{&c.MaxHead: 16 << 10, &c.MaxBuffered: 64 << 10, &c.MaxConns: 50_000, &c.MaxIdlePerEndpoint: 64} {
		if *field == 0 {
			*field = value
		}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&c.HeadTimeout: 10 * time.Second, &c.IdleTimeout: 75 * time.Second, &c.ConnectTimeout: 5 * time.Second,
		&c.SendTimeout: 60 * time.Second, &c.ReadTimeout: 60 * time.Second, &c.DrainTimeout: 30 * time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if len(c.SessionKey) == 0 {
		c.SessionKey = make([]byte, 32)
		if _, err := rand.Read(c.SessionKey); err != nil {
			return c, fmt.Errorf("make a key for session cookies: %w", err)
		}
	}
	return c, nil
}

// A Server serves one Table at a time.
type Server struct {
	Config
	metrics *metrics
	state   atomic.Pointer[state]
	// draining is set when Run's context ends: connections end after their current request.
	draining atomic.Bool
	// closing is set after DrainDelay: no connection waits for a request any more.
	closing atomic.Bool

	rules      sync.Map // of *gateway.Rule: *ruleState
	tlsConfigs sync.Map // of tlsKey: *tls.Config
	tlsCount   atomic.Int64
	mirroring  atomic.Int64
	flows      atomic.Int64
	h2         *http.Server
	h2conns    *handover
	authClient *http.Client
	passwords  *passwords

	mu        sync.Mutex
	upstreams map[upstreamKey]*upstream
	listeners map[listenerKey]*listener
	stopped   bool
	conns     conns
	work      sync.WaitGroup // connections, relays and mirrors
}

// state is what Apply changes at once.
type state struct {
	table     Table
	ports     map[uint16]gateway.Port // of TCP
	endpoints Endpoints
}

// New returns a server that listens nowhere.
func New(c Config) (*Server, error) {
	c, err := c.defaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		Config: c, upstreams: map[upstreamKey]*upstream{}, listeners: map[listenerKey]*listener{},
		h2conns: newHandover(), passwords: newPasswords(),
	}
	s.metrics = newMetrics(s)
	s.conns.open = map[*conn]struct{}{}
	s.authClient = s.newAuthClient()
	s.h2 = s.newH2()
	s.state.Store(&state{})
	return s, nil
}

// Ready returns why the server should get no new connections, or nil.
func (s *Server) Ready() error {
	if s.draining.Load() {
		return errors.New("the gateway ends")
	}
	if s.state.Load().table == nil {
		return errors.New("the gateway has no routes yet")
	}
	return nil
}

// Apply serves another table and other endpoints from now on. Each request sees either the last state or the new one.
// The error names the ports at which the server cannot listen; all others work, and the next Apply tries again.
func (s *Server) Apply(table Table, endpoints Endpoints) error {
	next := &state{table: table, ports: map[uint16]gateway.Port{}, endpoints: endpoints}
	ports := table.Ports()
	for _, p := range ports {
		if p.Proto == api.TCP {
			next.ports[p.Number] = p
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Store(next)
	for _, u := range s.upstreams {
		u.setEndpoints(endpoints[u.key.service])
	}
	return s.listen(ports)
}

// Run serves until ctx ends, and then until the accepted requests are answered or DrainTimeout is over.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.h2.Serve(s.h2conns) }()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			s.clean(time.Now())
		}
	}
	s.drain(tick.C)
	err := <-done
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// drain stops the server: first readiness, then the listeners, then the connections.
func (s *Server) drain(tick <-chan time.Time) {
	s.draining.Store(true)
	wait := time.NewTimer(s.DrainDelay)
	defer wait.Stop()
	for open := true; open; {
		select {
		case <-wait.C:
			open = false
		case now := <-tick:
			s.clean(now)
		}
	}
	s.mu.Lock()
	s.stopped = true
	for key, l := range s.listeners {
		l.close()
		delete(s.listeners, key)
	}
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), s.DrainTimeout)
	defer cancel()
	s.closing.Store(true)
	s.conns.closeIdle()
	_ = s.h2.Shutdown(ctx) // tells clients to go; at the deadline the rest is closed below
	ended := make(chan struct{})
	go func() {
		s.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.conns.closeAll()
		_ = s.h2.Close()
		<-ended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.upstreams {
		u.close()
	}
}

// clean forgets what was not used for a while: rules, upstreams and idle connections.
func (s *Server) clean(now time.Time) {
	used := map[*upstream]bool{}
	var gone, stay []*ruleState
	s.rules.Range(func(key, value any) bool {
		r := value.(*ruleState)
		if now.Sub(time.Unix(r.used.Load(), 0)) > ruleIdle {
			s.rules.Delete(key)
			gone = append(gone, r)
			return true
		}
		stay = append(stay, r)
		for _, b := range r.backends {
			used[b.upstream] = true
		}
		for _, b := range r.mirrors {
			used[b.upstream] = true
		}
		return true
	})
	s.metrics.forget(gone, stay)
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, u := range s.upstreams {
		if !used[u] && now.Sub(u.touched) > ruleIdle {
			delete(s.upstreams, key)
			u.close()
			continue
		}
		u.clean(now)
	}
	s.passwords.clean(now)
}

// ruleIdle is the time for which a rule without requests keeps its state and its metrics.
const ruleIdle = 10 * time.Minute
