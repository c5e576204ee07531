package listener

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// The connections that a server of health checks or metrics keeps open. A new connection above a limit gets in, and the
// connection with the longest silence ends. It belongs to the same client or, above MaxConns, to the client with the most
// connections. So greedy clients cannot keep out a probe, which asks once and leaves.
const (
	MaxConns = 512
	// MaxConnsOfClient is for one IPv4 address or one IPv6 /64, which a host has.
	MaxConnsOfClient = 16
	// MaxConnsOfNode is for the node itself, where the kubelet probes. MaxConns does not count these connections.
	MaxConnsOfNode = 64
)

// A Limit counts the connections of one or several listeners.
type Limit struct {
	max, ofClient, ofNode int

	mu    sync.Mutex
	open  list.List // of *counted; the first has the longest silence
	of    map[client]int
	total int // without connections of the node itself
}

// A client is the origin of connections: an IPv4 address, an IPv6 /64, or the node itself.
type client struct {
	from netip.Prefix
	node bool
}

// NewLimit returns a limit of max connections, of ofClient for one client, and of ofNode for the node itself.
func NewLimit(max, ofClient, ofNode int) *Limit {
	return &Limit{max: max, ofClient: ofClient, ofNode: ofNode, of: map[client]int{}}
}

// Listen returns a listener that counts the connections of l.
func (m *Limit) Listen(l net.Listener) net.Listener { return &limited{l, m} }

// take counts the connection c. out is the connection that has to end; nil if c fits.
func (m *Limit) take(c net.Conn) (in, out *counted) {
	in = &counted{Conn: c, limit: m, client: clientOf(c)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if has := m.of[in.client]; in.node && has >= m.ofNode || !in.node && has >= m.ofClient {
		out = m.silent(func(c *counted) bool { return c.client == in.client })
	} else if !in.node && m.total >= m.max {
		most := 0
		for who, n := range m.of {
			if !who.node {
				most = max(most, n)
			}
		}
		out = m.silent(func(c *counted) bool { return !c.node && m.of[c.client] == most })
	}
	if out != nil {
		m.remove(out)
	}
	in.at = m.open.PushBack(in)
	m.count(in, 1)
	return in, out
}

// silent returns the connection with the longest silence for which match is true.
func (m *Limit) silent(match func(*counted) bool) *counted {
	for e := m.open.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*counted); match(c) {
			return c
		}
	}
	return nil
}

// remove undoes the count of a connection, once.
func (m *Limit) remove(c *counted) {
	if c.at != nil {
		m.open.Remove(c.at)
		c.at = nil
		m.count(c, -1)
	}
}

func (m *Limit) count(c *counted, by int) {
	if m.of[c.client] += by; m.of[c.client] == 0 {
		delete(m.of, c.client)
	}
	if !c.node {
		m.total += by
	}
}

// clientOf returns the client of a connection. The client is the node itself if both ends have the same address, as the
// kubelet's probes have.
func clientOf(c net.Conn) client {
	from, to := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())
	bits := from.BitLen()
	if from.Is6() && from != to {
		bits = 64
	}
	prefix, _ := from.Prefix(bits) // an invalid address gives the zero Prefix, which is a client too
	return client{prefix, from == to}
}

func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// limited is a listener that counts its connections.
type limited struct {
	net.Listener
	limit *Limit
}

func (l *limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	in, out := l.limit.take(c)
	if out != nil {
		out.reset()
	}
	return in, nil
}

// counted is a connection in the count of a Limit until Close.
type counted struct {
	net.Conn
	client
	limit *Limit
	at    *list.Element // in limit.open; nil after remove
}

// Read marks the connection as the least silent one.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.limit.mu.Lock()
		if c.at != nil {
			c.limit.open.MoveToBack(c.at)
		}
		c.limit.mu.Unlock()
	}
	return n, err
}

func (c *counted) Close() error {
	c.limit.mu.Lock()
	c.limit.remove(c)
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

// reset closes the connection with a TCP reset, which leaves neither TIME_WAIT nor unread data.
func (c *counted) reset() {
	under := c.Conn
	for {
		inner, ok := under.(*counted)
		if !ok {
			break
		}
		under = inner.Conn
	}
	if tcp, ok := under.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close() // an error changes nothing
}
