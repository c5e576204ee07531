package userspace

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The proxy is a hop, as a router is: it calls endpoints with the hop limit (IPv4: TTL) of the
// client's packet, less one. Services whose endpoints are each other's frontends, on this node
// or others and in whatever modes those are, therefore end in a packet that is not passed on.

// lastHop is the hop limit of packets that are not passed on.
const lastHop = 1

// hopsOf returns the hop limit with which the client's packets arrived. The kernel notes that
// of the handshake's last packet where a connected socket keeps the hop limit for multicast,
// which TCP does not use (tcp_v4_syn_recv_sock; IP_PKTOPTIONS returns the same). Unlike
// TCP_SAVED_SYN, it is there with SYN cookies too.
func hopsOf(c *net.TCPConn) (hops int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	is4 := addrPort(c.LocalAddr()).Addr().Is4()
	e := raw.Control(func(fd uintptr) {
		if is4 {
			hops, err = unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MULTICAST_TTL)
		} else {
			hops, err = unix.GetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS)
		}
	})
	if e != nil {
		return 0, e
	}
	return hops, os.NewSyscallError("getsockopt hop limit", err)
}

// sendHops sets the hop limit of a socket's packets.
func sendHops(is4 bool, hops int) func(fd int) error {
	return func(fd int) error {
		if is4 {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, hops)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, hops)
	}
}

// receiveHops makes each datagram come with its hop limit.
func receiveHops(is4 bool) func(fd int) error {
	return func(fd int) error {
		if is4 {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVTTL, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	}
}

// setHops changes the hop limit of an open socket.
func setHops(c *net.UDPConn, is4 bool, hops int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = sendHops(is4, hops)(int(fd)) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("set hop limit: %w", err)
	}
	return nil
}

// An arrival is what a listener receives of a datagram besides its bytes and its source.
type arrival struct {
	dest netip.AddrPort // the address it was sent to
	hops int            // its hop limit
}

// parseArrival reads a datagram's control messages.
func parseArrival(oob []byte) (a arrival, ok bool) {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return a, false
	}
	for _, m := range all {
		switch {
		// struct sockaddr_in: family, port, address; sockaddr_in6 has the flow label between.
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_ORIGDSTADDR && len(m.Data) >= 8:
			a.dest = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Data[4:8])), binary.BigEndian.Uint16(m.Data[2:]))
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_ORIGDSTADDR && len(m.Data) >= 24:
			a.dest = netip.AddrPortFrom(netip.AddrFrom16([16]byte(m.Data[8:24])), binary.BigEndian.Uint16(m.Data[2:]))
		case (m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_TTL ||
			m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT) && len(m.Data) >= 4:
			a.hops = int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return a, a.dest.IsValid() && a.hops > 0
}

// farewell is how long a client that is turned away has to end its side.
const farewell = 10 * time.Second

// turnAway ends a client's connection that must not be tried with another endpoint by the
// proxies it came through, if there are any: it ends properly, without a byte, and what
// the client says is read until it ends its side. A reset would make each of them try its
// next endpoint.
func (p *proxy) turnAway(client *net.TCPConn) {
	defer context.AfterFunc(p.ctx, func() { reset(client) })()
	if client.CloseWrite() != nil || client.SetReadDeadline(time.Now().Add(farewell)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, client) // the caller closes it, whatever comes
}

// dismiss ends a client's connection like turnAway, at once.
func dismiss(client *net.TCPConn) {
	_ = client.CloseWrite() // the caller closes it, whatever comes
	raw, err := client.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // what is left unread would be answered with a reset
		var b [4 << 10]byte
		for range replay / len(b) {
			if n, err := unix.Read(int(fd), b[:]); n <= 0 || err != nil {
				return
			}
		}
	})
}
