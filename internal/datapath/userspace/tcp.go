package userspace

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// How long an endpoint has time to answer a SYN. If there is another endpoint, the time equals a client's first
// retransmission; otherwise it is the time that most clients wait.
const (
	synPatience  = time.Second
	lastPatience = 10 * time.Second
)

// accept serves the connections that come to a listener.
func (p *proxy) accept(l *net.TCPListener, s scope) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// Out of descriptors or memory: clients wait until connections end.
			p.limits.logExhausted(err)
			if !p.pause(10 * time.Millisecond) {
				return
			}
		default:
			p.running.Go(func() { p.serveTCP(c, s) })
		}
	}
}

// pause waits. It returns false if the proxy ends first.
func (p *proxy) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// A tcpConn is one TCP connection and the choice of its endpoint.
type tcpConn struct {
	*proxy
	front    *proxyFrontend
	decision service.Decision
	pool     *pool
	scope    scope
	peer     netip.AddrPort // the client
	dest     netip.AddrPort // the address that the client called
	hops     int            // the hop limit of packets to endpoints
	holder   holder
	tried    []*target
}

// serveTCP relays one connection from its first byte to its last.
func (p *proxy) serveTCP(client *net.TCPConn, s scope) {
	defer client.Close()
	l := &tcpConn{proxy: p, scope: s, peer: addrPort(client.RemoteAddr()), dest: addrPort(client.LocalAddr())}
	defer p.sessions.begin(flowKey{l.peer, l.dest})()
	if l.front = p.find(api.TCP, l.dest); l.front == nil {
		reset(client)
		return
	}
	if l.decision, l.pool = l.front.decide(s, l.peer.Addr()); l.decision.Action != service.Forward {
		reset(client)
		return
	}
	l.holder = holderOf(l.front, s, l.peer.Addr())
	if !p.limits.acquire(l.holder, connFiles, &p.limits.files) {
		l.front.tally.drops.Add(1)
		dismiss(client)
		return
	}
	defer p.limits.release(l.holder, connFiles, &p.limits.files)
	p.relayTCP(l, client)
}

// relayTCP relays a connection that the policy and the limits allow.
func (p *proxy) relayTCP(l *tcpConn, client *net.TCPConn) {
	hops, err := hopsOf(client)
	if err != nil {
		reset(client) // the client has reset the connection
		return
	}
	if l.hops = hops - 1; l.hops < lastHop {
		l.front.tally.drops.Add(1)
		p.turnAway(client)
		return
	}
	r := newRelay(client, &p.buffers)
	r.takePipe = func() bool { return p.limits.tryAcquire(l.holder, pipeFiles, &p.limits.files) }
	r.givePipe = func() { p.limits.release(l.holder, pipeFiles, &p.limits.files) }
	defer func() { l.front.tally.bytes.Add(r.bytes.Load()) }()
	for {
		m, from, c, err := l.dial()
		if err != nil {
			l.front.tally.drops.Add(1)
			r.fail()
			return
		}
		again := l.carry(r, m, c)
		l.givePort(m, from)
		if !again {
			return
		}
	}
}

// carry relays between the client and one endpoint. again is true if the endpoint has reset before its first byte, so
// that another endpoint may be tried.
func (l *tcpConn) carry(r *relay, m *member, c *net.TCPConn) (again bool) {
	defer c.Close()
	one := &session{
		proto: api.TCP, scope: l.scope, client: l.peer, dest: l.dest, front: l.front.Key(), endpoint: m.addr,
		end: func() { reset(r.client); reset(c) },
	}
	l.sessions.add(one)
	defer l.sessions.remove(one)
	m.active.Add(1)
	defer m.active.Add(-1)
	if l.ctx.Err() != nil || !l.allowed(one) { // the proxy was closed, or the Gate has changed, before sessions had this session
		one.end()
		return false
	}
	return r.run(c, func(f func()) {
		l.front.tally.connections.Add(1) // once for a connection
		l.running.Go(f)
	})
}

var errNobody = errors.New("no endpoint answers")

// dial connects to the next endpoint that answers. from is the source that the connection keeps, if any. The caller
// gives back the port.
func (l *tcpConn) dial() (m *member, from netip.AddrPort, c *net.TCPConn, err error) {
	for {
		m = l.chooseMember(l.front, l.decision.Route, l.pool, pickKey{l.peer.Addr(), l.dest.Addr()}, l.tried)
		if m == nil {
			return nil, from, nil, errNobody
		}
		l.tried = append(l.tried, m.target)
		if !l.allows(api.TCP, l.scope, l.peer.Addr(), m.addr) {
			continue
		}
		patience := synPatience
		if len(l.tried) == len(l.pool.members) {
			patience = lastPatience
		}
		if from = l.source(*m.endpoint); !from.IsValid() && !l.limits.acquire(l.holder, 1, &m.ports) {
			continue
		}
		c, err = l.netns.dialTCP(l.ctx, dialSpec{from, m.addr, l.hops}, patience)
		if err == nil {
			return m, from, c, nil
		}
		l.givePort(m, from)
		l.limits.logExhausted(err)
		if l.ctx.Err() != nil {
			return nil, from, nil, err
		}
	}
}

// givePort gives back the node's port of a connection to m, if the connection does not keep the client's address.
func (l *tcpConn) givePort(m *member, from netip.AddrPort) {
	if !from.IsValid() {
		l.limits.release(l.holder, 1, &m.ports)
	}
}

// source returns the source address for an endpoint. The zero value stands for the node's own address.
func (l *tcpConn) source(e service.Endpoint) netip.AddrPort {
	if keepsSource(l.decision, e) {
		return l.peer
	}
	return netip.AddrPort{}
}

// reset ends a connection with a TCP reset.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // c may already be closed
	_ = c.Close()
}
