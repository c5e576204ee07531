package hostport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Limits on the sockets that the node's own processes can make the agent hold.
const (
	maxConns    = 512 // TCP connections and UDP clients of all ports
	dialTimeout = 10 * time.Second
	udpIdle     = time.Minute // a UDP client that is silent for this time is forgotten
	maxDatagram = 64 << 10
)

// A Loopback serves ports on 127.0.0.1 and ::1 for the node's own processes: it passes their connections and datagrams
// on to the pods. In the kernel this would need route_localnet, which opens other programs' loopback ports to the
// network. The pod sees the node as the client. SCTP is not served.
//
// One goroutine calls its methods.
type Loopback struct {
	log    *slog.Logger
	kind   string
	ports  map[service.Key]*port
	logged map[service.Key]string // logged errors of ports that cannot be served
	slots  chan struct{}
}

// NewLoopback returns a Loopback without ports. kind names its ports in the log.
func NewLoopback(log *slog.Logger, kind string) *Loopback {
	return &Loopback{log: log, kind: kind, ports: map[service.Key]*port{}, logged: map[service.Key]string{}, slots: make(chan struct{}, maxConns)}
}

// Serve makes l serve exactly these ports. Connections to endpoints that may not keep them end. A port that another
// program holds is tried again at the next call.
func (l *Loopback) Serve(want map[service.Key]Backends) {
	for k, p := range l.ports {
		if to, ok := want[k]; ok {
			p.to.set(to)
		} else {
			p.close()
			delete(l.ports, k)
		}
	}
	for k := range l.logged {
		if _, ok := want[k]; !ok {
			delete(l.logged, k)
		}
	}
	for k, to := range want {
		if l.ports[k] != nil || k.Proto == api.SCTP {
			continue
		}
		p, err := open(k, to, l.slots)
		if err != nil {
			if l.logged[k] != err.Error() {
				l.log.Warn("a "+l.kind+" is not served on a loopback address; on the node's other addresses it is", "address", k.String(), "err", err)
			}
			l.logged[k] = err.Error()
			continue
		}
		delete(l.logged, k)
		l.ports[k] = p
	}
}

// Close ends all connections and waits for their end.
func (l *Loopback) Close() { l.Serve(nil) }

// A port is one served address and port.
type port struct {
	to      *chooser
	slots   chan struct{}
	ctx     context.Context // ends when the port closes
	stop    context.CancelFunc
	socket  io.Closer
	running sync.WaitGroup
}

func open(k service.Key, to Backends, slots chan struct{}) (*port, error) {
	p := &port{slots: slots}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.to = newChooser(p.ctx, to)
	switch k.Proto {
	case api.TCP:
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(k.Addr))
		if err != nil {
			p.stop()
			return nil, err
		}
		p.socket = l
		p.running.Go(func() { p.accept(l) })
	case api.UDP:
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(k.Addr))
		if err != nil {
			p.stop()
			return nil, err
		}
		p.socket = c
		p.running.Go(func() { p.receive(c) })
	}
	return p, nil
}

func (p *port) close() {
	p.stop()
	p.socket.Close()
	p.running.Wait()
}

// take takes a slot if one is free.
func (p *port) take() bool {
	select {
	case p.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *port) give() { <-p.slots }

// accept accepts connections and passes them on.
func (p *port) accept(l *net.TCPListener) {
	for {
		client, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, or the client has gone: wait a moment
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		case !p.take():
			refuse(client)
		default:
			to, leads := p.to.choose() // in the order of arrival
			p.running.Go(func() {
				defer p.give()
				connection(leads, client, to)
			})
		}
	}
}

// refuse resets a connection, so that its client fails at once.
func refuse(c *net.TCPConn) {
	_ = c.SetLinger(0)
	c.Close()
}

// connection copies bytes in both directions until both have ended, or until leads ends.
func connection(leads context.Context, client *net.TCPConn, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(leads, dialTimeout)
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	cancel()
	if err != nil {
		refuse(client)
		return
	}
	pod := c.(*net.TCPConn)
	stop := context.AfterFunc(leads, func() { refuse(client); refuse(pod) })
	defer stop()
	var ways sync.WaitGroup
	pass := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			refuse(to)
			refuse(from)
			return
		}
		_ = to.CloseWrite()
	}
	ways.Go(func() { pass(pod, client) })
	pass(client, pod)
	ways.Wait()
	client.Close()
	pod.Close()
}

// receive passes datagrams on, with one socket for each client.
func (p *port) receive(c *net.UDPConn) {
	var mu sync.Mutex
	clients := map[netip.AddrPort]*net.UDPConn{}
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a client refused an answer
		}
		mu.Lock()
		pod := clients[from]
		mu.Unlock()
		if pod == nil {
			if pod = p.client(c, from, func() { mu.Lock(); delete(clients, from); mu.Unlock() }); pod == nil {
				continue
			}
			mu.Lock()
			clients[from] = pod
			mu.Unlock()
		}
		_ = pod.SetReadDeadline(time.Now().Add(udpIdle))
		_, _ = pod.Write(buf[:n]) // the datagram is lost if the pod refuses it
	}
}

// client opens a client's socket to the pod. It passes answers back until the client is idle or the port leads
// elsewhere, and then calls forget. Nil: no slot is free.
func (p *port) client(c *net.UDPConn, from netip.AddrPort, forget func()) *net.UDPConn {
	if !p.take() {
		return nil
	}
	to, leads := p.to.choose()
	pod, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		p.give()
		return nil
	}
	p.running.Go(func() {
		defer p.give()
		defer forget()
		defer pod.Close()
		stop := context.AfterFunc(leads, func() { pod.Close() })
		defer stop()
		buf := make([]byte, maxDatagram)
		for {
			_ = pod.SetReadDeadline(time.Now().Add(udpIdle))
			n, err := pod.Read(buf)
			switch {
			case errors.Is(err, net.ErrClosed), isTimeout(err):
				return
			case err == nil:
				_, _ = c.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	})
	return pod
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
