package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Conn sends requests to the kernel and reads the answers, without copying them. It works in the network namespace of
// the thread that opened it. Only one goroutine may use it.
//
// Its socket blocks. Go's poller watches the sockets of mdlayher/netlink, and each answer wakes the thread of the
// poller: 10,000 small requests took six times as long.
type Conn struct {
	fd  int
	buf []byte
	seq uint32
}

const messageHeader = unix.NLMSG_HDRLEN

// bufferSize is the size of the buffer for answers: the largest page of a dump that the kernel sends. For each page the
// kernel walks the objects from the start, so the time of a dump in small pages grows with the square of its size.
// 50,000 Services took 2.5 s in pages of 4 KiB.
const bufferSize = 32 << 10

// checkInterval is how often a waiting Conn checks whether its context has ended.
const checkInterval = 100 * time.Millisecond

// Dial opens a socket of a netlink protocol, unix.NETLINK_….
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	wait := unix.NsecToTimeval(checkInterval.Nanoseconds())
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", errors.Join(err, unix.Close(fd)))
	}
	return &Conn{fd: fd, buf: make([]byte, bufferSize)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Ask sends one request, and calls f with the body of each answer. The body is valid until f returns. flags is
// NLM_F_DUMP, or 0 for one answer. interrupted says that the kernel's objects changed during a dump, so that the dump
// may be incomplete.
//
// An error from the kernel is an unix.Errno. After any other error the caller closes the Conn, because it may hold
// unread answers.
func (c *Conn) Ask(ctx context.Context, typ, flags uint16, body []byte, f func(body []byte) error) (interrupted bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if c.seq++; flags == 0 {
		flags = unix.NLM_F_ACK // the acknowledgement ends the answer
	}
	e := binary.NativeEndian
	msg := e.AppendUint32(make([]byte, 0, messageHeader+len(body)), uint32(messageHeader+len(body)))
	msg = e.AppendUint16(msg, typ)
	msg = e.AppendUint16(msg, unix.NLM_F_REQUEST|flags)
	msg = e.AppendUint32(msg, c.seq)
	msg = append(e.AppendUint32(msg, 0), body...)
	if err := unix.Sendto(c.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	limit := time.Now().Add(Limit)
	_, hasDeadline := ctx.Deadline()
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		switch {
		case errors.Is(err, unix.EAGAIN) && (hasDeadline || time.Now().Before(limit)), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, errLimit
		case err != nil:
			return false, err
		}
		changed, done, err := parseAnswers(c.buf[:n], c.seq, f)
		if interrupted = interrupted || changed; done || err != nil {
			return interrupted, err
		}
	}
}

// parseAnswers reads one datagram, and calls f with the body of each answer to the request seq. done says that the
// answer is complete.
func parseAnswers(b []byte, seq uint32, f func([]byte) error) (interrupted, done bool, err error) {
	e := binary.NativeEndian
	for len(b) >= messageHeader {
		size, typ, flags := int(e.Uint32(b)), e.Uint16(b[4:]), e.Uint16(b[6:])
		if size < messageHeader || size > len(b) {
			return interrupted, false, fmt.Errorf("message of %d bytes in %d", size, len(b))
		}
		body, answer := b[messageHeader:size], e.Uint32(b[8:]) == seq
		b = b[min((size+3)&^3, len(b)):]
		if !answer {
			continue
		}
		interrupted = interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		switch typ {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) >= 4 {
				if code := int32(e.Uint32(body)); code != 0 {
					return interrupted, true, unix.Errno(-code)
				}
			}
			return interrupted, true, nil
		}
		if err := f(body); err != nil {
			return interrupted, false, err
		}
	}
	return interrupted, false, nil
}
