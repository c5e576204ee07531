package volley

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
)

// A Station is a host that sends and receives.
type Station struct {
	Name string
	out  [2]int // raw sockets for packets with their header: IPv4, IPv6
}

// A tap is a raw socket that gets a copy of the packets for its host.
type tap struct {
	fd    int
	at    *Station
	is4   bool
	proto int
	got   func(*Field, *tap, packet)
}

// A packet is a packet from a tap, without the network header.
type packet struct {
	src, dst netip.Addr
	data     []byte
}

// Join adds a host. enter runs a function on a thread in the host.
func (f *Field) Join(name string, enter func(func() error) error) (*Station, error) {
	s := &Station{Name: name, out: [2]int{-1, -1}}
	err := enter(func() error {
		for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
			fd, err := raw(family, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			s.out[i] = fd
		}
		f.stations[name] = s
		for _, t := range []tap{
			{is4: true, proto: unix.IPPROTO_TCP, got: (*Field).tcp},
			{is4: false, proto: unix.IPPROTO_TCP, got: (*Field).tcp},
			{is4: true, proto: unix.IPPROTO_UDP, got: (*Field).udp},
			{is4: false, proto: unix.IPPROTO_UDP, got: (*Field).udp},
			{is4: true, proto: unix.IPPROTO_SCTP, got: (*Field).sctp},
			{is4: false, proto: unix.IPPROTO_SCTP, got: (*Field).sctp},
			{is4: true, proto: unix.IPPROTO_ICMP, got: (*Field).icmp},
			{is4: false, proto: unix.IPPROTO_ICMPV6, got: (*Field).icmp},
		} {
			t.at = s
			if err := f.tap(t); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", name, err)
	}
	return s, nil
}

// raw opens a non-blocking socket.
func raw(family, proto int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	return fd, os.NewSyscallError("socket", err)
}

const buffer = 8 << 20 // size of a tap's buffer: all answers of a volley come before the first read

func (f *Field) tap(t tap) error {
	family := unix.AF_INET6
	if t.is4 {
		family = unix.AF_INET
	}
	fd, err := raw(family, t.proto)
	if err != nil {
		return err
	}
	t.fd = fd
	f.taps[int32(fd)] = &t
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err)
	}
	if !t.is4 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); err != nil {
			return os.NewSyscallError("setsockopt IPV6_RECVPKTINFO", err)
		}
	}
	if t.proto == unix.IPPROTO_TCP {
		if err := onlyHandshakes(fd, t.is4); err != nil {
			return err
		}
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// onlyHandshakes passes only SYN and RST, without the programs' own connections.
func onlyHandshakes(fd int, is4 bool) error {
	flags := uint32(13)
	if is4 {
		flags += 20 // the filter also sees the IPv4 header
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flags},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: flagSYN | flagRST, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
}

// read reads a packet from the tap's socket.
func (t *tap) read(f *Field) error {
	for {
		n, oobn, _, from, err := unix.Recvmsg(t.fd, f.buf, f.oob, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read at %s: %w", t.at.Name, err)
		}
		if p, ok := t.packet(f.buf[:n], f.oob[:oobn], from); ok {
			t.got(f, t, p)
		}
	}
}

// packet removes the network header, or the bytes that the kernel passes in its place.
func (t *tap) packet(data, oob []byte, from unix.Sockaddr) (p packet, ok bool) {
	if t.is4 {
		if len(data) < 20 {
			return p, false
		}
		p.src, p.dst = netip.AddrFrom4([4]byte(data[12:16])), netip.AddrFrom4([4]byte(data[16:20]))
		p.data = data[min(int(data[0]&15)*4, len(data)):]
		return p, true
	}
	peer, ok := from.(*unix.SockaddrInet6)
	if !ok {
		return p, false
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return p, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			return packet{src: netip.AddrFrom16(peer.Addr), dst: netip.AddrFrom16([16]byte(m.Data[:16])), data: data}, true
		}
	}
	return p, false
}

// send sends a probe.
func (s *Station) send(p Probe, id uint32) error {
	src := netip.AddrPortFrom(p.Src, portOf(id))
	var err error
	switch p.Proto {
	case api.TCP:
		err = s.write(src, p.To, unix.IPPROTO_TCP, syn(src, p.To, id))
	case api.UDP:
		err = s.write(src, p.To, unix.IPPROTO_UDP, datagram(src, p.To, "who?\n"))
	case api.SCTP:
		err = s.write(src, p.To, unix.IPPROTO_SCTP, chunk(src, p.To, sctpInit, id))
	}
	if err != nil {
		return fmt.Errorf("send from %s to %v: %w", s.Name, p.To, err)
	}
	return nil
}

// write sends a packet. If a rule of the sender's host stops the packet, or it has no route, the result is silence.
func (s *Station) write(src, dst netip.AddrPort, proto uint8, payload []byte) error {
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.Addr().As16()}
	i := 1
	if dst.Addr().Is4() {
		to, i = &unix.SockaddrInet4{Addr: dst.Addr().As4()}, 0
	}
	data := header(src.Addr(), dst.Addr(), proto, payload)
	for {
		err := unix.Sendto(s.out[i], data, 0, to)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ECONNREFUSED):
			return nil
		}
		return err
	}
}
