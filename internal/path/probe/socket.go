package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/path/trace"
)

// A socket is the client's socket.
type socket struct {
	fd       int
	is4, tcp bool
}

// open makes a socket with the tag, the source port, and the don't-fragment bit.
func open(o trace.Order) (*socket, error) {
	s := &socket{is4: o.To.Addr().Is4(), tcp: o.Proto == tcp}
	family, kind := unix.AF_INET6, unix.SOCK_DGRAM
	if s.is4 {
		family = unix.AF_INET
	}
	if s.tcp {
		kind = unix.SOCK_STREAM
	}
	var err error
	if s.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	if err := s.set(o); err != nil {
		s.close()
		return nil, fmt.Errorf("prepare the socket: %w", err)
	}
	return s, nil
}

func (s *socket) set(o trace.Order) error {
	level, tos, report, discover := unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVERR, unix.IPV6_MTU_DISCOVER
	if s.is4 {
		level, tos, report, discover = unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVERR, unix.IP_MTU_DISCOVER
	}
	err := errors.Join(unix.SetsockoptInt(s.fd, level, tos, int(o.Tag)<<2), unix.SetsockoptInt(s.fd, level, report, 1),
		unix.SetsockoptInt(s.fd, level, discover, unix.IP_PMTUDISC_DO))
	if err == nil && o.Port != 0 {
		err = unix.Bind(s.fd, sockaddr(netip.AddrPortFrom(unspecified(s.is4), o.Port)))
	}
	return err
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// connect connects, and waits for the answer of a TCP server.
func (s *socket) connect(ctx context.Context, to netip.AddrPort) error {
	err := unix.Connect(s.fd, sockaddr(to))
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if err := s.wait(ctx, unix.POLLOUT); err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if code != 0 {
		return unix.Errno(code)
	}
	return nil
}

// read waits for data.
func (s *socket) read(ctx context.Context, b []byte) (int, error) {
	for {
		if err := s.wait(ctx, unix.POLLIN); err != nil {
			return 0, err
		}
		n, err := unix.Read(s.fd, b)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// wait waits for an event, an error of the socket, or the end of ctx.
func (s *socket) wait(ctx context.Context, events int16) error {
	for ctx.Err() == nil {
		left := pollEvery
		if at, ok := ctx.Deadline(); ok {
			left = max(min(left, time.Until(at)), time.Millisecond)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, int(left.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

// local returns the socket's own address.
func (s *socket) local() netip.AddrPort {
	a, err := unix.Getsockname(s.fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// heard describes an error of the socket.
func (s *socket) heard(err error) trace.Heard {
	h := trace.Heard{Error: err.Error(), Outcome: trace.Failed}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, unix.ETIMEDOUT):
		h.Outcome, h.Error = trace.Silent, "no answer"
	case errors.Is(err, unix.ECONNREFUSED):
		h.Outcome = trace.Refused
	case errors.Is(err, unix.ECONNRESET):
		h.Outcome = trace.Reset
	case errors.Is(err, unix.EMSGSIZE):
		h.Outcome = trace.TooBig
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
		h.Outcome = trace.Unreachable
	}
	if !s.tcp {
		s.readError(&h)
	}
	level, option := unix.IPPROTO_IPV6, unix.IPV6_MTU
	if s.is4 {
		level, option = unix.IPPROTO_IP, unix.IP_MTU
	}
	if mtu, err := unix.GetsockoptInt(s.fd, level, option); err == nil && h.MTU == 0 && h.Outcome == trace.TooBig {
		h.MTU = mtu
	}
	return h
}

// readError reads the ICMP error from the queue of a UDP socket: who sent it, and what it says.
func (s *socket) readError(h *trace.Heard) {
	control := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(s.fd, make([]byte, 1), control, unix.MSG_ERRQUEUE)
	if err != nil {
		return
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return
	}
	for _, m := range messages {
		b := m.Data
		if len(b) < 16 { // struct sock_extended_err
			continue
		}
		const icmp, icmp6 = 2, 3
		if origin := b[4]; origin != icmp && origin != icmp6 {
			continue
		}
		h.ICMP = icmpText(b[5], b[6])
		if unix.Errno(binary.NativeEndian.Uint32(b)) == unix.EMSGSIZE {
			h.MTU = int(binary.NativeEndian.Uint32(b[8:]))
		}
		switch from := b[16:]; { // the sockaddr of the sender
		case len(from) >= 8 && binary.NativeEndian.Uint16(from) == unix.AF_INET:
			h.From = netip.AddrFrom4([4]byte(from[4:8]))
		case len(from) >= 24 && binary.NativeEndian.Uint16(from) == unix.AF_INET6:
			h.From = netip.AddrFrom16([16]byte(from[8:24]))
		}
	}
}

func icmpText(typ, code byte) string { return fmt.Sprintf("type %d code %d", typ, code) }

func unspecified(is4 bool) netip.Addr {
	if is4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
