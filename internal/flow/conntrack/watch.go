package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// watchBuffer is the size of a Watcher's socket buffer. A busy node makes 10,000 entries a second, each with a few events
// of 300 bytes.
const watchBuffer = 8 << 20

// A Change is what happened to an entry.
type Change uint8

// The changes.
const (
	Created Change = iota
	Updated        // an answer, another state, a mark
	Destroyed
)

// String returns "new", "update" or "destroy", as conntrack(8) writes them.
func (c Change) String() string { return [...]string{"new", "update", "destroy"}[c] }

// A Watcher hears of the changes in the kernel's table of one network namespace.
type Watcher struct{ file *os.File }

// Watch begins to listen in the network namespace of the calling thread. Only one goroutine may call Next. Close ends
// Next.
func Watch() (*Watcher, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	for _, group := range []int{unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY} {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
	}
	if err != nil {
		return nil, fmt.Errorf("listen to conntrack: %w [needs CAP_NET_ADMIN and nf_conntrack_netlink]", errors.Join(err, unix.Close(fd)))
	}
	return &Watcher{os.NewFile(uintptr(fd), "ctnetlink")}, nil
}

// Close ends the Watcher.
func (w *Watcher) Close() { _ = w.file.Close() }

// SetDeadline makes Next fail with os.ErrDeadlineExceeded at that time.
func (w *Watcher) SetDeadline(at time.Time) error { return w.file.SetReadDeadline(at) }

// Next waits for changes and calls f for each. It fails with unix.ENOBUFS if changes were lost, because nobody called
// Next in time. The Watcher can still be used then.
func (w *Watcher) Next(buf []byte, f func(Change, Entry)) error {
	n, err := netlink.Read(w.file, buf)
	if err != nil {
		return err
	}
	return changes(buf[:n], f)
}

// changes reads one datagram of notifications.
func changes(b []byte, f func(Change, Entry)) error {
	for len(b) >= nlmsgHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < nlmsgHeader || size > len(b) {
			return errors.New("read conntrack's events: they are malformed")
		}
		typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		if e, ok := parse(b[nlmsgHeader:size]); ok {
			switch {
			case typ == ctDelete:
				f(Destroyed, Entry{e.clone()})
			case typ == ctNew && flags&unix.NLM_F_CREATE != 0:
				f(Created, Entry{e.clone()})
			case typ == ctNew:
				f(Updated, Entry{e.clone()})
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}
