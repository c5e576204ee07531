package reset

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// Flags of a TCP header.
const (
	flagSYN = 1 << 1
	flagACK = 1 << 4
)

const (
	header4   = 20
	header6   = 40
	headerTCP = 20
	hops      = 64
	protoTCP  = 6
)

// segment returns an IP packet with a TCP segment without data. In an established connection a SYN is invalid, and so
// is an ACK with a number far from the expected one.
func segment(from, to netip.AddrPort, flags byte, seq uint32) []byte {
	tcp := make([]byte, headerTCP)
	binary.BigEndian.PutUint16(tcp[0:], from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12] = headerTCP / 4 << 4
	tcp[13] = flags
	binary.BigEndian.PutUint16(tcp[14:], 1024) // window
	binary.BigEndian.PutUint16(tcp[16:], checksum.Transport(from.Addr(), to.Addr(), protoTCP, tcp))
	if from.Addr().Is4() {
		ip := make([]byte, header4, header4+headerTCP)
		ip[0] = 4<<4 | header4/4
		binary.BigEndian.PutUint16(ip[2:], header4+headerTCP) // the kernel adds id and checksum
		ip[8], ip[9] = hops, protoTCP
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		return append(ip, tcp...)
	}
	ip := make([]byte, header6, header6+headerTCP)
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], headerTCP)
	ip[6], ip[7] = protoTCP, hops
	copy(ip[8:], from.Addr().AsSlice())
	copy(ip[24:], to.Addr().AsSlice())
	return append(ip, tcp...)
}

// sockets send forged packets from the network namespace of the thread that opened them.
type sockets struct{ fd4, fd6 int }

func open() (sockets, error) {
	s := sockets{fd4: -1, fd6: -1}
	for family, fd := range map[int]*int{unix.AF_INET: &s.fd4, unix.AF_INET6: &s.fd6} {
		n, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		if err == unix.EAFNOSUPPORT {
			continue // a kernel without IPv6 has no IPv6 flows
		}
		if err == nil {
			*fd = n
			err = unix.SetsockoptInt(n, unix.SOL_SOCKET, unix.SO_PRIORITY, priority)
		}
		if err != nil {
			s.close()
			return sockets{}, fmt.Errorf("open raw socket: %w [needs CAP_NET_RAW and CAP_NET_ADMIN]", err)
		}
	}
	return s, nil
}

func (s sockets) close() {
	for _, fd := range []int{s.fd4, s.fd6} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// send sends a packet that segment made.
func (s sockets) send(packet []byte, to netip.Addr) error {
	if to.Is4() {
		return unix.Sendto(s.fd4, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
	}
	return unix.Sendto(s.fd6, packet, 0, &unix.SockaddrInet6{Addr: to.As16()})
}
