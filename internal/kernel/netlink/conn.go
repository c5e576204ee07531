package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Conn asks questions, many small ones or one with a large answer, without a copy of what
// the kernel sends. It works in the network namespace of the thread that opened it, and
// belongs to one goroutine.
//
// Its socket blocks. With one that Go's poller watches, as mdlayher/netlink's, each answer
// wakes the poller's thread: 10,000 small questions took six times as long.
type Conn struct {
	fd  int
	buf []byte
	seq uint32
}

// Sizes in bytes: of what a message and an attribute begin with, and of what is read at
// once, which is the kernel's maximum. To send the next piece of a dump the kernel walks
// from its start, so that a dump in small pieces grows with the square: 50,000 Services
// took 2.5 s in pages of 4 KiB.
const (
	messageHeader = unix.NLMSG_HDRLEN
	bufferSize    = 32 << 10
)

// lookUp is how often a Conn that waits looks whether its context has ended.
const lookUp = 100 * time.Millisecond

// Dial opens a socket of a netlink protocol, unix.NETLINK_….
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	wait := unix.NsecToTimeval(lookUp.Nanoseconds())
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", errors.Join(err, unix.Close(fd)))
	}
	return &Conn{fd: fd, buf: make([]byte, bufferSize)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Ask sends one message and calls f with the body of each answer, which is valid until f
// returns. Flags are added to NLM_F_REQUEST: NLM_F_DUMP, or none for one answer. It
// reports whether a change came while the kernel answered: then it may have missed something.
// After an error, but for one of the kernel's (an unix.Errno), answers may be left unread,
// and the Conn is of no more use.
func (c *Conn) Ask(ctx context.Context, typ, flags uint16, body []byte, f func(body []byte) error) (interrupted bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if c.seq++; flags == 0 {
		flags = unix.NLM_F_ACK // or the end of the answer could not be seen
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
	_, own := ctx.Deadline()
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		switch {
		case errors.Is(err, unix.EAGAIN) && (own || time.Now().Before(limit)), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, errLimit
		case err != nil:
			return false, err
		}
		torn, done, err := parseAnswers(c.buf[:n], c.seq, f)
		if interrupted = interrupted || torn; done || err != nil {
			return interrupted, err
		}
	}
}

// parseAnswers reads one datagram: it calls f for the bodies of the answers to seq, and
// reports whether they are complete.
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
