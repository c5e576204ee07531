package userspace

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// refuse answers a UDP client like a closed port, as the endpoint's node does in other modes. It sends an ICMP port
// unreachable from the address that the client called, with the beginning of the client's datagram.
func (p *netNamespace) refuse(k flowKey, size int) error {
	return p.do(func() error {
		is4 := k.dest.Addr().Is4()
		family, proto := unix.AF_INET6, unix.IPPROTO_ICMPV6
		var from, to unix.Sockaddr = &unix.SockaddrInet6{Addr: k.dest.Addr().As16()}, &unix.SockaddrInet6{Addr: k.client.Addr().As16()}
		if is4 {
			family, proto = unix.AF_INET, unix.IPPROTO_ICMP
			from, to = &unix.SockaddrInet4{Addr: k.dest.Addr().As4()}, &unix.SockaddrInet4{Addr: k.client.Addr().As4()}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		if err := transparent(is4)(fd); err != nil {
			return os.NewSyscallError("setsockopt TRANSPARENT", err)
		}
		if err := unix.Bind(fd, from); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if err := unix.Sendto(fd, unreachable(k, size), 0, to); err != nil {
			return fmt.Errorf("send ICMP to %v: %w", k.client, err)
		}
		return nil
	})
}

// unreachable returns the ICMP message port unreachable, for a datagram of size bytes.
func unreachable(k flowKey, size int) []byte {
	udp := binary.BigEndian.AppendUint16(nil, k.client.Port())
	udp = binary.BigEndian.AppendUint16(udp, k.dest.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+size))
	udp = append(udp, 0, 0)
	client, dest := k.client.Addr().AsSlice(), k.dest.Addr().AsSlice()
	if k.dest.Addr().Is6() {
		ip := append([]byte{6 << 4, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 64}, append(client, dest...)...)
		binary.BigEndian.PutUint16(ip[4:], uint16(8+size))
		// Type 1, code 4: port unreachable. The kernel computes the checksum.
		return append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, append(ip, udp...)...)
	}
	ip := append([]byte{4<<4 | 5, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(client, dest...)...)
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+size))
	binary.BigEndian.PutUint16(ip[10:], checksum.Of(ip))
	msg := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, append(ip, udp...)...)
	binary.BigEndian.PutUint16(msg[2:], checksum.Of(msg))
	return msg
}
