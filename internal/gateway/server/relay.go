package server

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// serveStream relays a TCP connection to the backends of its port.
func (s *Server) serveStream(c *conn, st *state) {
	stream, ok := st.table.Stream(c.port, api.TCP)
	if !ok {
		s.metrics.refused.WithLabelValues("route").Inc()
		return
	}
	s.relay(c, stream.Backends)
}

// relay relays a connection to an endpoint of one of the backends. The endpoint's filters do not apply: it is no HTTP.
func (s *Server) relay(c *conn, backends []gateway.Backend) {
	b := chooseStream(backends)
	if b == nil || b.Refused != "" {
		s.metrics.refused.WithLabelValues("backend").Inc()
		return
	}
	u := s.upstreamOf(b)
	var tried []*endpoint
	for range maxUnsent {
		now := time.Now()
		e := u.pick(tried, now)
		if e == nil {
			break
		}
		tried = append(tried, e)
		up, err := e.dial(context.Background(), s.ConnectTimeout)
		if err != nil {
			e.failed(now)
			continue
		}
		e.succeeded()
		s.metrics.streams.Inc()
		relayBytes(c.Conn, up.Conn, tunnelIdle)
		_ = up.Close()
		return
	}
	s.metrics.refused.WithLabelValues("endpoint").Inc()
}

// chooseStream returns a backend at random, as the weights say.
func chooseStream(all []gateway.Backend) *gateway.Backend {
	total := uint64(0)
	for i := range all {
		total += uint64(all[i].Weight)
	}
	if total == 0 {
		return nil
	}
	n := weighted(total)
	for i := range all {
		if w := uint64(all[i].Weight); n < w {
			return &all[i]
		} else {
			n -= w
		}
	}
	return nil
}

// Bounds of UDP flows in the process.
const (
	maxFlows    = 20_000
	maxDatagram = 64 << 10
	flowIdle    = time.Minute
)

// A udpRelay relays the datagrams of a port. Each client has a socket of its own to its endpoint.
type udpRelay struct {
	srv  *Server
	port uint16
	conn *net.UDPConn
	mu   sync.Mutex
	to   map[string]*flow
}

// A flow is a client of a udpRelay.
type flow struct {
	net.Conn
	endpoint *endpoint
}

func (s *Server) openUDP(ctx context.Context, at string, port uint16) (*listener, error) {
	var lc net.ListenConfig
	p, err := lc.ListenPacket(ctx, "udp", at)
	if err != nil {
		return nil, err
	}
	r := &udpRelay{srv: s, port: port, conn: p.(*net.UDPConn), to: map[string]*flow{}}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		r.serve()
	}()
	return &listener{close: r.close}, nil
}

func (r *udpRelay) close() {
	_ = r.conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.to {
		_ = f.Close()
	}
}

// serve relays until the socket is closed.
func (r *udpRelay) serve() {
	b := make([]byte, maxDatagram)
	for {
		n, client, err := r.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if f := r.flowOf(client.String(), func(answer []byte) error {
			_, err := r.conn.WriteToUDPAddrPort(answer, client)
			return err
		}); f != nil {
			_ = f.SetReadDeadline(time.Now().Add(flowIdle))
			_, _ = f.Write(b[:n]) // UDP may lose it
		}
	}
}

// flowOf returns the flow of a client, or makes one. An endpoint that left the Service loses its flows.
func (r *udpRelay) flowOf(client string, answer func([]byte) error) *flow {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.to[client]; f != nil {
		if !f.endpoint.gone.Load() {
			return f
		}
		_ = f.Close()
		delete(r.to, client)
	}
	st := r.srv.state.Load()
	stream, ok := st.table.Stream(r.port, api.UDP)
	if !ok {
		return nil
	}
	b := chooseStream(stream.Backends)
	if b == nil || b.Refused != "" || r.srv.flows.Add(1) > maxFlows {
		if b != nil && b.Refused == "" {
			r.srv.flows.Add(-1)
			r.srv.metrics.refused.WithLabelValues("flows").Inc()
		}
		return nil
	}
	e := r.srv.upstreamOf(b).pick(nil, time.Now())
	if e == nil {
		r.srv.flows.Add(-1)
		return nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.addr))
	if err != nil {
		r.srv.flows.Add(-1)
		return nil
	}
	f := &flow{c, e}
	r.to[client] = f
	r.srv.work.Add(1) // serve is counted, so Wait cannot have ended
	go func() {
		defer r.srv.work.Done()
		defer r.srv.flows.Add(-1)
		f.answers(answer)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.to[client] == f {
			delete(r.to, client)
		}
	}()
	return f
}

// answers relays the endpoint's datagrams until it is silent for flowIdle.
func (f *flow) answers(answer func([]byte) error) {
	defer f.Close()
	b := make([]byte, 2<<10)
	for {
		n, err := f.Read(b)
		if err != nil {
			return
		}
		if n == len(b) && len(b) < maxDatagram { // rare: the next datagrams fit
			b = slices.Grow(b[:0], maxDatagram)[:maxDatagram]
		}
		if answer(b[:n]) != nil {
			return
		}
		_ = f.SetReadDeadline(time.Now().Add(flowIdle))
	}
}
