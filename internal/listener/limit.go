package listener

import (
	"net"
	"net/netip"
	"sync"
)

// How many connections a server of health checks or metrics keeps open. More are closed at once, rather than left
// waiting: a client that takes all there are must not keep the kubelet's probes out.
const (
	MaxConns = 512
	// MaxConnsOfClient are those of one address; of IPv6, of one /64, which is what a host has.
	MaxConnsOfClient = 16
	// MaxConnsOfNode are those of the node itself, from which the kubelet probes. They are not
	// among MaxConns.
	MaxConnsOfNode = 64
)

// A Limit counts the connections of one or several listeners.
type Limit struct {
	max, ofClient, ofNode int

	mu     sync.Mutex
	total  int // but those of the node itself
	client map[netip.Prefix]int
}

// NewLimit returns a limit of max connections, ofClient of one client and ofNode of the node itself.
func NewLimit(max, ofClient, ofNode int) *Limit {
	return &Limit{max: max, ofClient: ofClient, ofNode: ofNode, client: map[netip.Prefix]int{}}
}

// Listen returns a listener whose connections are counted.
func (m *Limit) Listen(l net.Listener) net.Listener { return &limited{l, m} }

// take counts a connection, and returns what counts it off again; false: there are enough.
func (m *Limit) take(c net.Conn) (release func(), ok bool) {
	client, node := clientOf(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	if node && m.client[client] >= m.ofNode || !node && (m.client[client] >= m.ofClient || m.total >= m.max) {
		return nil, false
	}
	m.count(client, node, 1)
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.count(client, node, -1)
	}), true
}

func (m *Limit) count(client netip.Prefix, node bool, by int) {
	if m.client[client] += by; m.client[client] == 0 {
		delete(m.client, client)
	}
	if !node {
		m.total += by
	}
}

// clientOf returns where a connection comes from. It comes from the node itself if both of its
// ends have the same address, as the kubelet's probes have.
func clientOf(c net.Conn) (client netip.Prefix, node bool) {
	from, to := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())
	bits := 32
	if from.Is6() {
		bits = 64
	}
	if node = from == to; node {
		bits = from.BitLen()
	}
	client, _ = from.Prefix(bits) // of an invalid address: the zero Prefix, which is counted too
	return client, node
}

func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// limited is a listener that closes what is too much.
type limited struct {
	net.Listener
	limit *Limit
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if release, ok := l.limit.take(c); ok {
			return &counted{c, release}, nil
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leave no TIME_WAIT behind
		}
		_ = c.Close()
	}
}

// counted is a connection that is counted off when it is closed.
type counted struct {
	net.Conn
	release func()
}

func (c *counted) Close() error {
	c.release()
	return c.Conn.Close()
}
