package listener

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// How many connections a server of health checks or metrics keeps open. Who comes when there are
// enough gets in, and the connection that has been silent longest ends: one of the client's own or,
// if all clients together have enough, one of a client with the most. So neither one client nor many
// that hold all they can keep a probe out, which asks and goes.
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

	mu    sync.Mutex
	open  list.List // of *counted; the one that has been silent longest is the first
	of    map[client]int
	total int // but those of the node itself
}

// A client is where connections come from: an address or a /64, or the node itself.
type client struct {
	from netip.Prefix
	node bool
}

// NewLimit returns a limit of max connections, ofClient of one client and ofNode of the node itself.
func NewLimit(max, ofClient, ofNode int) *Limit {
	return &Limit{max: max, ofClient: ofClient, ofNode: ofNode, of: map[client]int{}}
}

// Listen returns a listener whose connections are counted.
func (m *Limit) Listen(l net.Listener) net.Listener { return &limited{l, m} }

// take counts a connection, and returns the one that has to end for it; nil if none has.
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

// silent returns, of the connections that are such, the one that has been silent longest.
func (m *Limit) silent(such func(*counted) bool) *counted {
	for e := m.open.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*counted); such(c) {
			return c
		}
	}
	return nil
}

// remove counts a connection off, once.
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

// clientOf returns where a connection comes from. It comes from the node itself if both of its
// ends have the same address, as the kubelet's probes have.
func clientOf(c net.Conn) client {
	from, to := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())
	bits := from.BitLen()
	if from.Is6() && from != to {
		bits = 64
	}
	prefix, _ := from.Prefix(bits) // of an invalid address: the zero Prefix, which is counted too
	return client{prefix, from == to}
}

func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// limited is a listener whose connections are counted.
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

// counted is a connection that is counted off when it is closed.
type counted struct {
	net.Conn
	client
	limit *Limit
	at    *list.Element // in limit.open; nil: counted off
}

// Read notes that the client has said something.
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

// reset closes the connection, and leaves neither TIME_WAIT behind nor what its client did not read.
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
	_ = c.Close() // who was connected has nothing to say any more
}
