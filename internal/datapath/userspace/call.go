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

// A dialSpec is how an endpoint is called: from is the client, if the endpoint is to see its address,
// the zero value for the node's own, and hops the hop limit of the packets.
type dialSpec struct {
	from, to netip.AddrPort
	hops     int
}

// Kernels give clients that ask for no port one of ephemeral or above: Linux has 32768 to 60999
// (net.ipv4.ip_local_port_range), RFC 6335 names 49152 and above.
const (
	privileged = 1024 // ports below need rights
	ephemeral  = 32768
	maxDraws   = 16
)

// sources are the addresses to call from, one after the other as long as they are in use: the
// client's with the port that it asked for, and with drawn ones that no kernel gives.
//
// A port that the client's kernel gave is not kept. It gives the same one to a connection that
// calls the endpoint directly, for that has another destination; the two would be one to the
// endpoint, and this node would take the answers to both for its own. Modes that translate
// addresses leave that to conntrack, which sees both.
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

// dial calls f with the sources until one is free. The zero value is the node's own, with a port
// that the kernel chooses.
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
	if l.from.IsValid() { // connections to other endpoints may have the same source
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

// dialUDP is dialTCP for a flow.
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
