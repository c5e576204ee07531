package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"syscall"
	"time"
)

// idleUpstream is how long an idle connection to an endpoint is kept. It is shorter than the usual time for which
// servers keep one.
const idleUpstream = 55 * time.Second

// A pool is the idle HTTP/1.1 connections to an endpoint. The zero value with a limit is usable.
type pool struct {
	mu     sync.Mutex
	idle   []*upConn // the last was used last
	limit  int
	closed bool
}

// An upConn is a connection to an endpoint.
type upConn struct {
	net.Conn
	tcp     *net.TCPConn // nil over TLS
	socket  *socket      // of tcp
	r       *bufio.Reader
	reused  bool
	idleAt  time.Time
	readBy  time.Time // the deadlines of the connection
	writeBy time.Time
}

// get returns an idle connection, or nil. sure: the connection was open a moment ago, which a request that cannot be repeated
// needs. Otherwise a connection that was used just before is not asked.
func (p *pool) get(now time.Time, sure bool) *upConn {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if now.Sub(c.idleAt) > idleUpstream || (sure || now.Sub(c.idleAt) > 200*time.Millisecond) && c.ended() {
			_ = c.Close()
			continue
		}
		c.reused = true
		return c
	}
}

// put keeps a connection for the next request, or closes it.
func (p *pool) put(c *upConn, now time.Time) {
	c.idleAt = now
	p.mu.Lock()
	keep := !p.closed && len(p.idle) < p.limit
	if keep {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
}

// clean closes the connections that were idle for too long.
func (p *pool) clean(now time.Time) {
	p.mu.Lock()
	old := 0
	for old < len(p.idle) && now.Sub(p.idle[old].idleAt) > idleUpstream {
		old++
	}
	ended := p.idle[:old:old]
	p.idle = append([]*upConn(nil), p.idle[old:]...)
	p.mu.Unlock()
	for _, c := range ended {
		_ = c.Close()
	}
}

// close closes all idle connections, and those that come back later.
func (p *pool) close() {
	p.mu.Lock()
	all := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// ended reports whether the endpoint has closed the connection, or sent something unasked.
func (c *upConn) ended() bool {
	if c.tcp == nil {
		return false
	}
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return true
	}
	ended := true
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = err != syscall.EAGAIN
	})
	return ended
}

// dial connects to an endpoint. An error means that the endpoint saw nothing of the request.
func (e *endpoint) dial(ctx context.Context, timeout time.Duration) (*upConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", e.text)
	if err != nil {
		return nil, err
	}
	up := &upConn{Conn: c}
	if e.up.tls == nil {
		up.tcp, _ = c.(*net.TCPConn)
		up.socket = newSocket(c)
		return up, nil
	}
	config := e.up.tls
	if len(config.NextProtos) > 0 { // this connection speaks HTTP/1.1
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"}
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	up.Conn = t
	return up, nil
}

// Read implements net.Conn.
func (c *upConn) Read(b []byte) (int, error) {
	if c.socket != nil {
		return c.socket.Read(b)
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *upConn) Write(b []byte) (int, error) {
	if c.socket != nil {
		return c.socket.Write(b)
	}
	return c.Conn.Write(b)
}

// coarse reports whether a deadline that is set to at serves for a timeout from now on: it may be an eighth too early.
// So a busy connection sets few deadlines.
func coarse(at, now time.Time, timeout time.Duration) bool {
	left := at.Sub(now)
	return left <= timeout && left > timeout-timeout/8
}

// readDeadline sets the deadline of reads.
func (c *upConn) readDeadline(now time.Time, timeout time.Duration) error {
	if coarse(c.readBy, now, timeout) {
		return nil
	}
	c.readBy = now.Add(timeout)
	return c.SetReadDeadline(c.readBy)
}

// writeDeadline sets the deadline of writes.
func (c *upConn) writeDeadline(now time.Time, timeout time.Duration) error {
	if coarse(c.writeBy, now, timeout) {
		return nil
	}
	c.writeBy = now.Add(timeout)
	return c.SetWriteDeadline(c.writeBy)
}
