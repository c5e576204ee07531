package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// tunnel asks an endpoint to switch to WebSocket. If it does, the bytes of both connections are relayed until one ends.
func (r *h1request) tunnel(e *endpoint) result {
	rule := r.x.decision.Rule
	now := time.Now()
	by := r.x.deadline(now)
	c, err := e.dial(context.Background(), by.bound(now, orDefault(rule.ConnectTimeout, r.k.srv.ConnectTimeout)))
	if err != nil {
		return result{err: err}
	}
	defer c.Close()
	c.r = readers.get(c)
	defer func() { readers.put(c.r) }()
	step := by.bound(now, orDefault(rule.ReadTimeout, r.k.srv.ReadTimeout))
	if err := c.SetDeadline(now.Add(step)); err != nil {
		return result{err: err}
	}
	r.out = r.req.AppendBytes(r.out[:0])
	if n, err := c.Write(r.out); err != nil {
		return result{err: err, sent: n > 0}
	}
	r.resp.Reset()
	r.resp.SetNoDefaultContentType(true)
	if err := r.resp.Read(c.r); err != nil {
		return result{err: err, sent: true}
	}
	e.succeeded()
	if r.resp.StatusCode() != http.StatusSwitchingProtocols {
		return r.relayAnswer(c, by)
	}
	if !is(r.resp.Peek("Upgrade"), "websocket") {
		return result{err: errors.New("the endpoint switches to another protocol"), sent: true}
	}
	r.x.respond((*responseHeader)(&r.resp))
	r.resp.Set("Connection", "Upgrade")
	r.status, r.close = http.StatusSwitchingProtocols, true
	if err := r.k.write(r.resp.AppendBytes(r.out[:0])); err != nil {
		return result{err: err, sent: true, started: true}
	}
	r.sent = r.pipe(c)
	return result{started: true}
}

// pipe relays bytes between the client and an endpoint. It returns the number of bytes to the client.
func (r *h1request) pipe(c *upConn) int64 {
	idle := orDefault(r.x.decision.Rule.ReadTimeout, tunnelIdle)
	client := &prefixed{r.k.conn.Conn, r.br}
	endpoint := &prefixed{c.Conn, c.r}
	_ = r.k.conn.SetDeadline(time.Time{})
	_ = c.SetDeadline(time.Time{})
	return relayBytes(client, endpoint, idle)
}

// tunnelIdle is how long a WebSocket, or a relayed TCP connection, may be silent in both directions.
const tunnelIdle = time.Hour

// relayBytes relays between a client and an endpoint until both directions ended, or nothing came for the time idle.
func relayBytes(client, endpoint net.Conn, idle time.Duration) (toClient int64) {
	l := &life{client: client, endpoint: endpoint, idle: idle}
	l.touch(time.Now())
	up := make(chan struct{})
	go func() {
		defer close(up)
		l.copy(endpoint, client)
	}()
	toClient = l.copy(client, endpoint)
	<-up
	return toClient
}

// A life is the common deadline of a relay's two directions.
type life struct {
	client, endpoint net.Conn
	idle             time.Duration
}

func (l *life) touch(now time.Time) {
	_ = l.client.SetDeadline(now.Add(l.idle))
	_ = l.endpoint.SetDeadline(now.Add(l.idle))
}

// copy copies one direction, and passes on its end.
func (l *life) copy(to, from net.Conn) (n int64) {
	touched := time.Now()
	for {
		piece, err := copyPiece(to, from)
		n += piece
		if now := time.Now(); now.Sub(touched) > l.idle/16 && piece > 0 {
			touched = now
			l.touch(now)
		}
		if err == nil && piece > 0 {
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) { // a reset or a deadline ends both directions
			_ = to.Close()
			_ = from.Close()
			return n
		}
		if w, ok := plain(to).(closeWriter); ok {
			_ = w.CloseWrite()
		} else {
			_ = to.Close()
		}
		return n
	}
}

// copyPiece copies what is there, at most 256 KiB.
func copyPiece(to, from net.Conn) (int64, error) {
	dst, ok := plain(to).(*net.TCPConn)
	src, ok2 := plain(from).(*net.TCPConn)
	if p, pre := from.(*prefixed); ok && ok2 && (!pre || p.r == nil || p.r.Buffered() == 0) {
		return dst.ReadFrom(&io.LimitedReader{R: src, N: 256 << 10}) // the kernel moves the bytes
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	n, err := from.Read(*b)
	if n > 0 {
		if _, werr := to.Write((*b)[:n]); werr != nil {
			return int64(n), werr
		}
	}
	return int64(n), err
}

// plain returns the connection below a prefix.
func plain(c net.Conn) net.Conn {
	if p, ok := c.(*prefixed); ok {
		return p.Conn
	}
	return c
}
