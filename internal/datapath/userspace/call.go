package userspace

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A dialSpec says how to call an endpoint. from is the client's address if the endpoint may see it, and the zero value
// for the node's own address. hops is the hop limit of the packets.
type dialSpec struct {
	from, to netip.AddrPort
	hops     int
}

// A client that asks for no port gets an ephemeral one from its kernel: Linux uses 32768 to 60999
// (net.ipv4.ip_local_port_range), RFC 6335 names 49152 and above.
const (
	privileged = 1024 // ports below need rights
	ephemeral  = 32768
	maxDraws   = 16
)

// sources yields addresses to call from, until one is free. The first is the client's own address with the port that
// the client asked for. The others are the client's address with random ports below ephemeral.
//
// An ephemeral port of the client is not kept. The client's kernel can give the port to a second connection of the
// client, directly to the endpoint, because that connection has another destination. The endpoint would see one
// connection instead of two, and this node would take the replies to both. Modes that translate addresses leave this
// case to conntrack, which sees both connections.
func (l dialSpec) sources() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		if p := l.from.Port(); p < ephemeral && !yield(l.from) {
			return
		}
		for range maxDraws {
			if !yield(netip.AddrPortFrom(l.from.Addr(), privileged+rand.N[uint16](ephemeral-privileged))) {
				return
			}
		}
	}
}

// dial calls f with the sources until one is free. For the node's own address it calls f once with the zero value, and
// the kernel chooses the port.
func (l dialSpec) dial(f func(from netip.AddrPort) error) (err error) {
	if !l.from.IsValid() {
		return f(l.from)
	}
	for from := range l.sources() {
		if err = f(from); !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
	}
	return err
}

// dialTCP connects to an endpoint.
func (p *netNamespace) dialTCP(ctx context.Context, l dialSpec, patience time.Duration) (c *net.TCPConn, err error) {
	is4 := l.to.Addr().Is4()
	set := []func(fd int) error{transparent(is4), sendHops(is4, l.hops), keepAlive}
	if l.from.IsValid() { // the source may be in use by a connection to another endpoint
		set = append(set, reuse)
	}
	d := net.Dialer{Timeout: patience, KeepAlive: -1, Control: option(set...)}
	err = l.dial(func(from netip.AddrPort) error {
		return p.do(func() (err error) {
			c, err = d.DialTCP(ctx, networkName("tcp", is4), from, l.to)
			return err
		})
	})
	return c, err
}

// dialUDP opens the socket of a UDP flow to an endpoint.
func (p *netNamespace) dialUDP(ctx context.Context, l dialSpec) (c *net.UDPConn, err error) {
	is4 := l.to.Addr().Is4()
	d := net.Dialer{Control: option(transparent(is4), sendHops(is4, l.hops))}
	err = l.dial(func(from netip.AddrPort) error {
		return p.do(func() (err error) {
			c, err = d.DialUDP(ctx, networkName("udp", is4), from, l.to)
			return err
		})
	})
	return c, err
}
