package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// readBuffer is what the kernel fills at once in a dump (netlink_dump: 32 KiB at
	// most, and only for a reader whose buffer was that large before).
	readBuffer = 32 << 10
	// requestsAtOnce bounds the answers that wait in the socket; each may be as large as
	// its request and some more.
	requestsAtOnce = 64
	// patience is how long an answer may take. The kernel works while it is asked, so
	// that silence means an answer was lost.
	patience = 10 // seconds
)

// A socket speaks ctnetlink in the network namespace of the thread that opened it.
//
// It reads by itself because libraries collect a dump before they hand it over: a table
// of a million flows would be some 300 MB.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

func newSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, readBuffer)}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}))
	if err != nil {
		s.close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return s, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// dump sends m, which asks for a dump or an acknowledgement, and calls each with what follows the header of each message of the
// answer, which is valid until each returns.
func (s *socket) dump(ctx context.Context, m message, each func([]byte)) error {
	s.seq++
	if err := s.send(m.finish(s.seq)); err != nil {
		return err
	}
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.receive(func(typ uint16, seq uint32, body []byte) error {
			switch {
			case seq != s.seq: // of a dump that was given up
			case typ == unix.NLMSG_DONE, typ == unix.NLMSG_ERROR:
				done = true
				return status(body)
			default:
				each(body)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// count returns how many entries the table has.
func (s *socket) count(ctx context.Context) (entries int, err error) {
	err = s.dump(ctx, newMessage(ctGetStats, unix.NLM_F_ACK, true), func(b []byte) {
		if len(b) < nfgenHeader {
			return
		}
		for typ, data := range attrs(b[nfgenHeader:]) {
			if typ == ctaStatsEntries && len(data) == 4 {
				entries = int(binary.BigEndian.Uint32(data))
			}
		}
	})
	if errors.Is(err, unix.EINVAL) { // no such subsystem
		return 0, fmt.Errorf("count: %w [the kernel may lack nf_conntrack_netlink]", err)
	}
	if err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return entries, nil
}

// delete deletes entries and returns how many of them were still there.
func (s *socket) delete(ctx context.Context, all []entry) (deleted int, err error) {
	return s.each(ctx, "delete", all, entry.deletion)
}

// each asks for something to be done to every entry, and returns how many were still
// there.
func (s *socket) each(ctx context.Context, what string, all []entry, ask func(entry) message) (done int, err error) {
	for some := range slices.Chunk(all, requestsAtOnce) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n, err := s.some(what, some, ask)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *socket) some(what string, some []entry, ask func(entry) message) (done int, err error) {
	var out []byte
	first := s.seq + 1
	for _, e := range some {
		s.seq++
		out = append(out, ask(e).finish(s.seq)...)
	}
	if err := s.send(out); err != nil {
		return 0, err
	}
	var failed error
	for answers := 0; answers < len(some); {
		err := s.receive(func(typ uint16, seq uint32, body []byte) error {
			if typ != unix.NLMSG_ERROR || seq-first >= uint32(len(some)) {
				return nil
			}
			answers++
			switch err := status(body); {
			case err == nil:
				done++
			case errors.Is(err, unix.ENOENT): // it ended by itself
			default:
				e := some[seq-first]
				failed = fmt.Errorf("%s %v of %v: %w", what, Flow{Proto: e.orig.proto, Frontend: e.orig.dst, Endpoint: e.reply.src}, e.orig.src, err)
			}
			return nil
		})
		if err != nil {
			return done, err
		}
	}
	return done, failed
}

func (s *socket) send(b []byte) error {
	if err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask the kernel: %w", err)
	}
	return nil
}

// receive reads one datagram and calls each for the messages in it, until it fails.
func (s *socket) receive(each func(typ uint16, seq uint32, body []byte) error) error {
	n, err := s.read()
	if err != nil {
		return err
	}
	for b := s.buf[:n]; len(b) >= nlmsgHeader; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlmsgHeader || size > len(b) {
			return errors.New("read the kernel's answer: it makes no sense")
		}
		typ, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
		if err := each(typ, seq, b[nlmsgHeader:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

func (s *socket) read() (int, error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(s.fd, s.buf, nil, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return 0, fmt.Errorf("read the kernel's answer: none in %d s", patience)
		case err != nil:
			return 0, fmt.Errorf("read the kernel's answer: %w", err)
		case flags&unix.MSG_TRUNC != 0:
			return 0, errors.New("read the kernel's answer: it is larger than the buffer")
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return n, nil // others than the kernel may send here, too
		}
	}
}

// status reads the error code that an acknowledgement begins with.
func status(body []byte) error {
	if len(body) < 4 {
		return errors.New("read the kernel's answer: it makes no sense")
	}
	switch code := int32(binary.NativeEndian.Uint32(body)); {
	case code == 0:
		return nil
	case unix.Errno(-code) == unix.EPERM:
		return fmt.Errorf("%w [needs CAP_NET_ADMIN]", unix.EPERM)
	default:
		return unix.Errno(-code)
	}
}
