package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// maxFlows bounds the UDP flows, because each has a socket and a goroutine. Datagrams of further flows are dropped, as
// by a full conntrack table.
const maxFlows = 1 << 16

// Timeouts of a flow without datagrams, if the node has no setting: the defaults of conntrack. As in conntrack, a flow
// is a stream and lives longer if it is answered and had a datagram later than streamAfter. A question with one answer
// is no stream.
const (
	oneWayIdle  = 30 * time.Second
	answerIdle  = 120 * time.Second
	streamAfter = 2 * time.Second
)

// idleTimes returns the timeouts of the node's conntrack.
func idleTimes() (oneWay, answered time.Duration) {
	read := func(name string, otherwise time.Duration) time.Duration {
		if n := setting("netfilter/" + name); len(n) == 1 && n[0] > 0 {
			return time.Duration(n[0]) * time.Second
		}
		return otherwise
	}
	return read("nf_conntrack_udp_timeout", oneWayIdle), read("nf_conntrack_udp_timeout_stream", answerIdle)
}

// localPorts returns the number of ports that the kernel can give to sockets without a port.
func localPorts() int {
	if n := setting("ipv4/ip_local_port_range"); len(n) == 2 && n[0] < n[1] {
		return n[1] - n[0] + 1
	}
	return 60999 - 32768 + 1 // the kernel's default
}

// setting returns the numbers in a parameter of the network namespace, or nil if there is no such parameter.
func setting(name string) (all []int) {
	text, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		return nil
	}
	for _, word := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

// A flowKey identifies a flow by the client and the address that it called.
type flowKey struct{ client, dest netip.AddrPort }

// A udpFlow is the exchange of a UDP client with an endpoint.
//
//	client ─→ listener ─→ endpoint's socket (one a flow) ─→ endpoint
//	client ←─ answers (one socket a called address) ←────── endpoint
type udpFlow struct {
	*proxy
	key       flowKey
	front     *proxyFrontend
	scope     scope
	decision  service.Decision
	pool      *pool
	reply     *replySocket
	holder    holder
	last      atomic.Int64 // time of the last datagram, in nanoseconds since startedAt
	startedAt time.Time
	ended     atomic.Bool

	mu       sync.Mutex
	socket   *net.UDPConn // to the endpoint; replaced if the endpoint refuses
	hops     int          // the hop limit of the socket's datagrams
	member   *member
	session  *session
	first    []byte // the last unanswered datagram, for the next endpoint
	answered bool
	ownPort  bool // the flow has one of the node's ports
	tried    []*target
}

// maxFirst bounds the datagram that is kept for the next endpoint.
const maxFirst = 4 << 10

// flows has the open flows, and the sockets that answer for them.
type flows struct {
	mu      sync.Mutex
	all     map[flowKey]*udpFlow
	sockets map[netip.AddrPort]*replySocket
	// oneWay and answered are the timeouts of flows without and with an answer.
	oneWay, answered time.Duration
}

// A replySocket has the address of a frontend and answers for all its flows.
type replySocket struct {
	*net.UDPConn
	flows int // guarded by flows.mu
}

// receive serves the datagrams that come to a listener.
func (p *proxy) receive(c *net.UDPConn, s scope) {
	buf, oob := make([]byte, 64<<10), make([]byte, 256)
	for {
		n, nn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !p.pause(10 * time.Millisecond) {
				return
			}
			continue
		}
		a, ok := parseArrival(oob[:nn])
		if !ok {
			continue
		}
		client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if f := p.flow(flowKey{client, a.dest}, s, a.hops-1); f != nil {
			f.forward(buf[:n], a.hops-1)
		}
	}
}

// flow returns the flow of a datagram, and begins one if there is none. hops is the hop limit for the endpoint. flow
// returns nil if the datagram is not served.
func (p *proxy) flow(k flowKey, s scope, hops int) *udpFlow {
	p.flows.mu.Lock()
	f := p.flows.all[k]
	p.flows.mu.Unlock()
	if f != nil && !f.ended.Load() {
		return f
	}
	to := p.find(api.UDP, k.dest)
	if to == nil {
		return nil
	}
	f = &udpFlow{proxy: p, key: k, front: to, scope: s, hops: hops, holder: holderOf(to, s, k.client.Addr()), startedAt: time.Now()}
	if f.decision, f.pool = to.decide(s, k.client.Addr()); f.decision.Action != service.Forward {
		return nil
	}
	if !f.begin() {
		to.tally.drops.Add(1)
		return nil
	}
	to.tally.connections.Add(1)
	p.flows.mu.Lock()
	p.flows.all[k] = f
	p.flows.mu.Unlock()
	p.running.Go(f.run)
	return f
}

// begin acquires the resources of a flow and connects to an endpoint. If it returns false, the flow has no resources.
func (f *udpFlow) begin() bool {
	if f.hops < lastHop || f.ctx.Err() != nil || !f.limits.acquire(f.holder, connFiles, &f.limits.files) {
		return false
	}
	if !f.limits.acquire(f.holder, 1, &f.limits.flows) {
		f.limits.release(f.holder, connFiles, &f.limits.files)
		return false
	}
	var err error
	if f.reply, err = f.replySocketFor(f.key.dest); err == nil {
		if f.next() {
			return true
		}
		f.noAnswer(f)
	}
	f.limits.logExhausted(err)
	f.giveBack()
	return false
}

// giveBack releases the flow's resources.
func (f *udpFlow) giveBack() {
	f.limits.release(f.holder, connFiles, &f.limits.files)
	f.limits.release(f.holder, 1, &f.limits.flows)
	if f.ownPort {
		f.limits.release(f.holder, 1, &f.limits.udpPorts)
	}
}

// replySocketFor returns the socket that answers for an address.
func (p *proxy) replySocketFor(at netip.AddrPort) (*replySocket, error) {
	p.flows.mu.Lock()
	defer p.flows.mu.Unlock()
	a := p.flows.sockets[at]
	if a == nil {
		c, err := p.netns.replies(p.ctx, at)
		if err != nil {
			return nil, err
		}
		a = &replySocket{UDPConn: c}
		p.flows.sockets[at] = a
	}
	a.flows++
	return a, nil
}

// noAnswer ends a flow's use of its reply socket. The last flow closes the socket, because an open one would receive
// datagrams that the node should reject.
func (p *proxy) noAnswer(f *udpFlow) {
	p.flows.mu.Lock()
	defer p.flows.mu.Unlock()
	if f.reply.flows--; f.reply.flows == 0 {
		_ = f.reply.Close()
		delete(p.flows.sockets, f.key.dest)
	}
}

// next connects to the next endpoint. It returns false if there is none, or if the flow has ended.
func (f *udpFlow) next() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeEndpoint()
	for !f.ended.Load() {
		m := f.chooseMember(f.front, f.decision.Route, f.pool, pickKey{f.key.client.Addr(), f.key.dest.Addr()}, f.tried)
		if m == nil {
			return false
		}
		f.tried = append(f.tried, m.target)
		if !f.allows(api.UDP, f.scope, f.key.client.Addr(), m.addr) {
			continue
		}
		var from netip.AddrPort
		if keepsSource(f.decision, *m.endpoint) {
			from = f.key.client
		}
		if !from.IsValid() && !f.takePort() {
			return false
		}
		c, err := f.netns.dialUDP(f.ctx, dialSpec{from, m.addr, f.hops})
		if err != nil {
			f.limits.logExhausted(err)
			continue
		}
		f.socket, f.member = c, m
		m.active.Add(1)
		f.session = &session{
			proto: api.UDP, scope: f.scope, client: f.key.client, dest: f.key.dest, front: f.front.Key(), endpoint: m.addr,
			end: f.end,
		}
		f.sessions.add(f.session)
		if f.ctx.Err() == nil && f.allowed(f.session) {
			return true
		}
		f.closeEndpoint() // the proxy was closed, or the Gate has changed, before sessions had this session
		return false
	}
	return false
}

// takePort acquires one of the node's ports, and keeps it until the flow ends. The caller holds mu.
func (f *udpFlow) takePort() bool {
	f.ownPort = f.ownPort || f.limits.acquire(f.holder, 1, &f.limits.udpPorts)
	return f.ownPort
}

// closeEndpoint closes the socket to the endpoint, if there is one. The caller holds mu.
func (f *udpFlow) closeEndpoint() {
	if f.socket == nil {
		return
	}
	_ = f.socket.Close()
	f.member.active.Add(-1)
	f.sessions.remove(f.session)
	f.socket = nil
}

// forward sends a client's datagram to the endpoint, with a hop limit.
func (f *udpFlow) forward(b []byte, hops int) {
	f.touch()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.socket == nil {
		return
	}
	if hops != f.hops {
		if hops < lastHop || setHops(f.socket, f.key.dest.Addr().Is4(), hops) != nil {
			f.front.tally.drops.Add(1)
			return
		}
		f.hops = hops
	}
	if !f.answered && len(b) <= maxFirst {
		f.first = append(f.first[:0], b...)
	}
	// The error belongs to an earlier datagram, and run sees it too. This datagram was not sent: send it again.
	if _, err := f.socket.Write(b); err != nil {
		_, _ = f.socket.Write(b)
	}
	f.front.tally.bytes.Add(uint64(len(b)))
}

func (f *udpFlow) touch() { f.last.Store(int64(time.Since(f.startedAt))) }

// idle returns how much longer the flow may be without a datagram.
func (f *udpFlow) idle() time.Duration {
	f.mu.Lock()
	last := time.Duration(f.last.Load())
	timeout := f.flows.oneWay
	if f.answered && last > streamAfter {
		timeout = f.flows.answered
	}
	f.mu.Unlock()
	return timeout - (time.Since(f.startedAt) - last)
}

// run relays the answers until the flow ends.
func (f *udpFlow) run() {
	defer f.close()
	f.touch()
	for f.carry() {
		f.mu.Lock()
		again, hops := f.first, f.hops
		f.mu.Unlock()
		if !f.next() {
			if !f.ended.Load() { // all endpoints have refused
				f.front.tally.drops.Add(1)
				_ = f.netns.refuse(f.key, len(again)) // an error does not matter: the network can lose the message as well
			}
			return
		}
		f.forward(again, hops)
	}
}

// carry relays the datagrams of one endpoint. It returns true if the endpoint refused before its first datagram, so
// that another endpoint may be tried.
func (f *udpFlow) carry() (refused bool) {
	f.mu.Lock()
	c := f.socket
	f.mu.Unlock()
	if c == nil {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	for {
		left := f.idle()
		if left <= 0 {
			return false
		}
		if err := c.SetReadDeadline(time.Now().Add(left)); err != nil {
			return false
		}
		b, n, err := f.buffers.read(raw)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue // the client may have sent a datagram since
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH):
			if !f.wasAnswered() {
				return true
			}
			continue
		case err != nil:
			return false
		}
		f.touch()
		f.noteAnswer()
		_, _ = f.reply.WriteToUDPAddrPort(b[:n], f.key.client) // the client may be gone
		f.buffers.put(b)
		f.front.tally.bytes.Add(uint64(n))
	}
}

func (f *udpFlow) wasAnswered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered || len(f.first) == 0
}

func (f *udpFlow) noteAnswer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered, f.first = true, nil
}

// end makes run return.
func (f *udpFlow) end() {
	f.ended.Store(true) // next checks ended, under mu, before it opens a socket
	f.mu.Lock()
	if f.socket != nil {
		_ = f.socket.Close()
	}
	f.mu.Unlock()
}

// close removes the flow and releases its resources.
func (f *udpFlow) close() {
	f.ended.Store(true)
	f.mu.Lock()
	f.closeEndpoint()
	f.mu.Unlock()
	f.flows.mu.Lock()
	if f.flows.all[f.key] == f { // a newer flow may have the key
		delete(f.flows.all, f.key)
	}
	f.flows.mu.Unlock()
	f.noAnswer(f)
	f.giveBack()
}
