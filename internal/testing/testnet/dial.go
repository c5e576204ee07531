package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dialTCP connects from the namespace of the thread. It differs from net.Dial in one point. All hosts of a test are on
// one machine, so an ICMP error often returns while connect(2) still holds the socket. Then the kernel only stores the
// error, and a refused client would look like a dropped one until its retransmission, a second later. RECVERR makes the
// kernel put the error into the socket's error queue, which dialTCP reads.
func dialTCP(to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	fd, err := openSocket(to, unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close() // FileConn makes a copy
	if err := queueErrors(fd, to, 1); err != nil {
		return nil, err
	}
	if err := connectSocket(fd, to); err != nil {
		return nil, err
	}
	if err := await(fd, patience); err != nil {
		return nil, err
	}
	// Without RECVERR the connection treats ICMP errors as usual.
	if err := queueErrors(fd, to, 0); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// Connect opens a TCP connection and closes it again. It returns how many times the client repeated its SYN, because it
// heard nothing for a second.
func (n *Namespace) Connect(to netip.AddrPort, patience time.Duration) (repeated int, err error) {
	err = n.Do(func() error {
		fd, err := openSocket(to, unix.SOCK_STREAM)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := queueErrors(fd, to, 1); err != nil {
			return err
		}
		err = connectSocket(fd, to)
		if err == nil {
			err = await(fd, patience)
		}
		info, infoErr := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
		if infoErr != nil {
			return errors.Join(err, os.NewSyscallError("getsockopt TCP_INFO", infoErr))
		}
		repeated = int(info.Total_retrans)
		return err
	})
	return repeated, err
}

// openSocket opens a non-blocking socket of the family of an address.
func openSocket(to netip.AddrPort, kind int) (fd int, err error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return fd, nil
}

// queueErrors sets RECVERR on a socket of the family of an address.
func queueErrors(fd int, to netip.AddrPort, on int) error {
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if to.Addr().Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	return os.NewSyscallError("setsockopt RECVERR", unix.SetsockoptInt(fd, level, option, on))
}

// connectSocket starts connecting.
func connectSocket(fd int, to netip.AddrPort) error {
	if err := unix.Connect(fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return os.NewSyscallError("connect", err)
	}
	return nil
}

// await waits until the socket is connected or has failed.
func await(fd int, patience time.Duration) error {
	for left := newPatience(patience); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(poll, pollTimeout(left.until))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0 && left.over():
			return fmt.Errorf("connect: %w", os.ErrDeadlineExceeded)
		case n == 0:
			continue
		}
		if err := verdict(fd); err != nil {
			return err
		}
		if poll[0].Revents&unix.POLLOUT != 0 {
			return nil
		}
	}
}

// pollTimeout returns the timeout for poll(2), in whole milliseconds and rounded up.
func pollTimeout(until time.Time) int { return int(max(time.Until(until), 0).Milliseconds()) + 1 }

// verdict returns the error of the socket. If the socket has no final error, it returns the error in the socket's
// queue.
func verdict(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_ERROR", err)
	}
	if code != 0 {
		return os.NewSyscallError("connect", unix.Errno(code))
	}
	oob := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(fd, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	for _, m := range messages {
		// struct sock_extended_err begins with the errno in native byte order.
		if len(m.Data) >= 4 {
			return os.NewSyscallError("connect", unix.Errno(binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
