package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

const (
	// readBuffer is the most that the kernel sends at once in a dump. It sends 32 KiB only to a reader whose last
	// buffer had that size (netlink_dump).
	readBuffer = 32 << 10
	// requestsAtOnce bounds the answers that wait in the socket. An answer may be a little larger than its request.
	requestsAtOnce = 64
)

// A socket speaks ctnetlink in the network namespace of the thread that opened it. Each exchange with the kernel ends
// with its context (package netlink).
//
// It does not use a library, because libraries collect a whole dump in memory before they return it: 300 MB for a table
// of a million flows.
type socket struct {
	file *os.File // non-blocking, so it supports deadlines
	raw  syscall.RawConn
	seq  uint32
	buf  []byte
}

func newSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), "ctnetlink"), buf: make([]byte, readBuffer)}
	if s.raw, err = s.file.SyscallConn(); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return s, nil
}

func (s *socket) close() { _ = s.file.Close() }

// dump sends m, a request for a dump or an acknowledgement. It calls each for every message of the answer, without the
// header. The bytes are valid until each returns. After an error the caller must close s, because it may have unread
// answers.
func (s *socket) dump(ctx context.Context, m message, each func([]byte)) error {
	return s.stream(ctx, m, func(msg []byte) error {
		each(msg)
		return nil
	})
}

// stream is dump with an end: the first error of each ends it.
func (s *socket) stream(ctx context.Context, m message, each func([]byte) error) error {
	return netlink.Within(ctx, s.file, func() error {
		s.seq++
		if err := s.send(m.finish(s.seq)); err != nil {
			return err
		}
		for done := false; !done; {
			err := s.receive(func(typ uint16, seq uint32, body []byte) error {
				switch {
				case seq != s.seq: // an answer to an abandoned request
				case typ == unix.NLMSG_DONE, typ == unix.NLMSG_ERROR:
					done = true
					return status(body)
				default:
					return each(body)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// count returns the number of entries in the table.
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

// delete deletes entries, and returns how many of them still existed.
func (s *socket) delete(ctx context.Context, all []entry) (deleted int, err error) {
	return s.each(ctx, "delete", all, entry.deletion)
}

// each sends a request for every entry, and returns how many of the entries still existed.
func (s *socket) each(ctx context.Context, what string, all []entry, request func(entry) message) (done int, err error) {
	for some := range slices.Chunk(all, requestsAtOnce) {
		err := netlink.Within(ctx, s.file, func() error {
			n, err := s.batch(what, some, request)
			done += n
			return err
		})
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *socket) batch(what string, some []entry, request func(entry) message) (done int, err error) {
	var out []byte
	first := s.seq + 1
	for _, e := range some {
		s.seq++
		out = append(out, request(e).finish(s.seq)...)
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
			case errors.Is(err, unix.ENOENT): // the flow has ended
			default:
				e := some[seq-first]
				failed = fmt.Errorf("%s %v of %v: %w", what, flow.Flow{Proto: e.orig.proto, Frontend: e.orig.dst, Endpoint: e.reply.src}, e.orig.src, err)
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
	var err error
	failed := s.raw.Write(func(fd uintptr) (done bool) {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(err, unix.EAGAIN)
	})
	if err := cmp.Or(failed, err); err != nil {
		return fmt.Errorf("send a request to the kernel: %w", err)
	}
	return nil
}

// receive reads one datagram, and calls each for its messages until each returns an error.
func (s *socket) receive(each func(typ uint16, seq uint32, body []byte) error) error {
	n, err := s.read()
	if err != nil {
		return err
	}
	return messages(s.buf[:n], each)
}

// messages calls each for the messages in a datagram, until each returns an error.
func messages(b []byte, each func(typ uint16, seq uint32, body []byte) error) error {
	for len(b) >= nlmsgHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlmsgHeader || size > len(b) {
			return errors.New("read the kernel's answer: it is malformed")
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
		var n, flags int
		var from unix.Sockaddr
		var err error
		failed := s.raw.Read(func(fd uintptr) (done bool) {
			n, _, flags, from, err = unix.Recvmsg(int(fd), s.buf, nil, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch err := cmp.Or(failed, err); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("read the kernel's answer: %w", err)
		case flags&unix.MSG_TRUNC != 0:
			return 0, errors.New("read the kernel's answer: it is larger than the buffer")
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return n, nil // ignore messages of other programs
		}
	}
}

// status returns the error in an acknowledgement, or nil if it reports success.
func status(body []byte) error {
	if len(body) < 4 {
		return errors.New("read the kernel's answer: it is malformed")
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
