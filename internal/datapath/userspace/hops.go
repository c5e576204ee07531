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

// The proxy is a hop, like a router. It calls an endpoint with the hop limit (IPv4: TTL) of the client's packet, less
// one. So a loop of Services ends with a packet that is not passed on. A loop has Services whose endpoints are
// frontends of each other, in any mode and on any node.

// lastHop is the highest hop limit of a packet that is not passed on.
const lastHop = 1

// hopsOf returns the hop limit of the client's packets. The kernel stores the hop limit of the handshake's last packet
// in the field for multicast, which TCP does not use (tcp_v4_syn_recv_sock; IP_PKTOPTIONS returns the same value).
// Unlike TCP_SAVED_SYN, this works with SYN cookies too.
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

// receiveHops makes the kernel add the hop limit to each datagram.
func receiveHops(is4 bool) func(fd int) error {
	return func(fd int) error {
		if is4 {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVTTL, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	}
}

// setHops changes the hop limit of an open socket's packets.
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

// An arrival has the properties of a received datagram other than its bytes and its source.
type arrival struct {
	dest netip.AddrPort // the address that the client called
	hops int            // the hop limit
}

// parseArrival reads a datagram's control messages.
func parseArrival(oob []byte) (a arrival, ok bool) {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return a, false
	}
	for _, m := range all {
		switch {
		// Fields of struct sockaddr_in: family, port, address. In sockaddr_in6 the flow label is before the address.
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

// farewell is how long a client that is turned away has time to close its side.
const farewell = 10 * time.Second

// turnAway ends the connection of a client whose hop limit is used up. It closes the connection without a byte, and
// reads the client's bytes until the client closes its side. A reset would be wrong: the client may be another proxy,
// which would then try its next endpoint.
func (p *proxy) turnAway(client *net.TCPConn) {
	defer context.AfterFunc(p.ctx, func() { reset(client) })()
	if client.CloseWrite() != nil || client.SetReadDeadline(time.Now().Add(farewell)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, client) // the caller closes the connection in any case
}

// dismiss ends a client's connection like turnAway, but does not wait for the client.
func dismiss(client *net.TCPConn) {
	_ = client.CloseWrite() // the caller closes the connection in any case
	raw, err := client.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // the kernel would answer unread bytes with a reset
		var b [4 << 10]byte
		for range replay / len(b) {
			if n, err := unix.Read(int(fd), b[:]); n <= 0 || err != nil {
				return
			}
		}
	})
}
