package bfd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// hopLimit is the TTL of all sent packets, so that the receiver knows how many hops they made (RFC 5082).
const hopLimit = 255

// firstPort is the lowest source port (RFC 5881, 4).
const firstPort = 49152

// A socketKind is a kind of socket that receives packets: for a family, and for one hop or several.
type socketKind struct{ v6, multiHop bool }

func (c Config) socketKind() socketKind { return socketKind{c.Peer.Is6(), c.MultiHop} }

func (k socketKind) port() uint16 {
	if k.multiHop {
		return numbers.PortBFDMultiHop
	}
	return numbers.PortBFD
}

// listen opens a socket that receives packets.
func (k socketKind) listen() (fd int, err error) {
	fd, err = k.socket()
	if err != nil {
		return -1, err
	}
	if k.v6 {
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1), unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVTTL, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(k.any(), k.port())))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("listen on UDP port %d for BFD: %w [another program on the node speaks BFD]", k.port(), err)
	}
	return fd, nil
}

func (k socketKind) any() netip.Addr {
	if k.v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (k socketKind) socket() (int, error) {
	family := unix.AF_INET
	if k.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket for BFD: %w", err)
	}
	return fd, nil
}

// dial opens the socket from which a session sends.
func dial(c Config) (fd int, err error) {
	k := c.socketKind()
	if fd, err = k.socket(); err != nil {
		return -1, err
	}
	if k.v6 {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, hopLimit)
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, hopLimit)
	}
	source := c.Source
	if !source.IsValid() {
		source = k.any()
	}
	for range 10 { // a random port may be in use
		if err != nil {
			break
		}
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, uint16(firstPort+rand.N(1<<16-firstPort)))))
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		err = nil
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(c.Peer, k.port())))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("send BFD to %v: %w", c.Peer, err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			s.ZoneId = uint32(i.Index)
		} else if n, err := strconv.Atoi(zone); err == nil {
			s.ZoneId = uint32(n)
		}
	}
	return s
}

// A datagram is a received UDP packet.
type datagram struct {
	data []byte
	from netip.Addr
	ttl  int
}

// read reads one datagram; false: none has arrived.
func read(fd int, buf, oob []byte) (d datagram, ok bool) {
	n, o, _, from, err := unix.Recvmsg(fd, buf, oob, 0)
	if err != nil {
		return d, false // nothing there, or the ICMP error of a packet that was sent
	}
	d.data = buf[:n]
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		d.from = netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		if d.from = netip.AddrFrom16(a.Addr); d.from.IsLinkLocalUnicast() {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				d.from = d.from.WithZone(i.Name)
			}
		}
	}
	all, err := unix.ParseSocketControlMessage(oob[:o])
	if err != nil {
		return d, true // without a TTL, which take refuses
	}
	for _, m := range all {
		v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_TTL
		v6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if (v4 || v6) && len(m.Data) >= 4 {
			d.ttl = int(m.Data[0]) | int(m.Data[1])<<8 | int(m.Data[2])<<16 | int(m.Data[3])<<24
		}
	}
	return d, true
}
