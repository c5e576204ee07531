package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Question is one request of AskMany.
type Question struct {
	Network  string // "tcp" or "udp"
	To       netip.AddrPort
	Patience time.Duration // for the whole request
}

// AskMany sends all requests at once, like Ask, and returns the answers in order. It needs one thread. Ask needs one
// for each waiting connection, too many for thousands of dropped packets.
func (n *Namespace) AskMany(questions []Question) []Answer {
	answers := make([]Answer, len(questions))
	var open []*pendingRequest
	defer func() {
		for _, a := range open {
			unix.Close(a.fd)
		}
	}()
	err := n.Do(func() error {
		for i, q := range questions {
			a, err := n.beginRequest(q)
			if err != nil {
				answers[i] = failure(err)
				continue
			}
			a.answer = &answers[i]
			open = append(open, a)
		}
		return nil
	})
	if err != nil {
		for i := range answers {
			answers[i] = failure(err)
		}
		return answers
	}
	for waiting := open; len(waiting) > 0; {
		waiting, err = poll(waiting)
		if err != nil {
			for _, a := range waiting {
				*a.answer = failure(err)
			}
			break
		}
	}
	return answers
}

// A pendingRequest is a request without an answer.
type pendingRequest struct {
	fd        int
	tcp       bool
	connected bool // the TCP socket is connected
	line      []byte
	patience  patience
	answer    *Answer
}

// beginRequest opens a socket in the namespace of the thread and connects it. For UDP it also sends the request.
func (n *Namespace) beginRequest(q Question) (_ *pendingRequest, err error) {
	a, kind := &pendingRequest{tcp: q.Network == "tcp", patience: newPatience(q.Patience)}, unix.SOCK_STREAM
	if !a.tcp {
		kind = unix.SOCK_DGRAM
	}
	if a.fd, err = openSocket(q.To, kind); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(a.fd)
		}
	}()
	if a.tcp {
		// As in dialTCP. A reset at close leaves no TIME_WAIT.
		err = errors.Join(queueErrors(a.fd, q.To, 1), os.NewSyscallError("setsockopt LINGER", unix.SetsockoptLinger(a.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})))
	} else {
		err = n.bindUDP(a.fd, q.To.Addr().Is6())
	}
	if err != nil {
		return nil, err
	}
	if err := connectSocket(a.fd, q.To); err != nil {
		return nil, err
	}
	if !a.tcp {
		if _, err := unix.Write(a.fd, []byte("who?\n")); err != nil && !errors.Is(err, unix.EPERM) {
			return nil, os.NewSyscallError("write", err)
		}
	}
	return a, nil
}

// bindUDP gives the socket the next port, as dialUDP does.
func (n *Namespace) bindUDP(fd int, is6 bool) error {
	any := netip.IPv4Unspecified()
	if is6 {
		any = netip.IPv6Unspecified()
	}
	return n.onFreePort(func(port uint16) error {
		return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(any, port))))
	})
}

// poll waits until a socket is ready or a step of a request's patience has ended. It returns the requests without an
// answer.
func poll(all []*pendingRequest) (waiting []*pendingRequest, err error) {
	fds := make([]unix.PollFd, len(all))
	first := all[0].patience.until
	for i, a := range all {
		fds[i] = unix.PollFd{Fd: int32(a.fd), Events: unix.POLLIN}
		if a.tcp && !a.connected {
			fds[i].Events = unix.POLLOUT
		}
		if a.patience.until.Before(first) {
			first = a.patience.until
		}
	}
	if _, err := unix.Poll(fds, pollTimeout(first)); err != nil && !errors.Is(err, unix.EINTR) {
		return all, os.NewSyscallError("poll", err)
	}
	for i, a := range all {
		if fds[i].Revents != 0 && a.handleEvent(fds[i].Revents&unix.POLLOUT != 0) {
			continue
		}
		if a.patience.over() {
			*a.answer = failure(fmt.Errorf("ask: %w", os.ErrDeadlineExceeded))
			continue
		}
		waiting = append(waiting, a)
	}
	return waiting, nil
}

// handleEvent reads the socket, and reports whether the request has an answer now.
func (a *pendingRequest) handleEvent(writable bool) bool {
	if a.tcp && !a.connected {
		if err := verdict(a.fd); err != nil {
			*a.answer = failure(err)
			return true
		}
		a.connected = writable
		return false
	}
	b := make([]byte, 256)
	n, err := unix.Read(a.fd, b)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case err == nil && n == 0:
		err = errors.New("the other end says nothing")
		fallthrough
	case err != nil:
		*a.answer = failure(os.NewSyscallError("read", err))
		return true
	}
	a.line = append(a.line, b[:n]...)
	if a.line[len(a.line)-1] != '\n' {
		return false
	}
	*a.answer = parseAnswer(string(a.line))
	return true
}
