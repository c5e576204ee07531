package dns

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// CoreDNS accepts whoever connects, and so do its servers of health, readiness and metrics. A pod
// that holds some ten thousand connections takes the memory that the kernel and Go need for them,
// and the DNS server is killed. CoreDNS has no place for a limit, so the process looks at its own
// sockets: a connection that is too much is shut down, which ends the goroutine that reads it.
const (
	maxConnections  = 2048 // of one port, which clients share as they do questions
	lookConnections = 100 * time.Millisecond
)

// A connection is a TCP connection that a port of this process accepted.
type connection struct {
	fd     int
	port   uint16
	client netip.AddrPort
}

// keepConnections ends connections of greedy clients until ctx ends.
func keepConnections(ctx context.Context) {
	most := maxConnections
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/2 < maxConnections {
		most = int(files.Cur / 2) // the other half is for upstreams
	}
	tick := time.NewTicker(lookConnections)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// The size of the directory is the number of descriptors (0 before Linux 6.2): few need no look.
		if dir, err := os.Stat("/proc/self/fd"); err == nil && (dir.Size() == 0 || dir.Size() > int64(most/2)) {
			for _, c := range tooMany(connections(), most) {
				c.end()
			}
		}
	}
}

// tooMany returns the connections beyond their clients' shares of their ports, those of the greediest
// first: what they give back is others'.
func tooMany(all []connection, most int) (excess []connection) {
	type key struct {
		port   uint16
		client netip.Addr
	}
	of, total := map[key][]connection{}, map[uint16]int{}
	for _, c := range all {
		k := key{c.port, c.client.Addr()}
		of[k] = append(of[k], c)
		total[c.port]++
	}
	greediest := slices.SortedFunc(maps.Keys(of), func(a, b key) int {
		return cmp.Or(cmp.Compare(len(of[b]), len(of[a])), a.client.Compare(b.client))
	})
	for _, k := range greediest {
		for have := of[k]; len(have) > max(1, most-total[k.port]); have = have[:len(have)-1] {
			excess = append(excess, have[len(have)-1])
			total[k.port]--
		}
	}
	return excess
}

// connections lists what the listening ports of this process have accepted.
func connections() (all []connection) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	listens := map[uint16]bool{}
	for _, entry := range dir {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		c, listening, ok := socketOf(fd)
		if listening {
			listens[c.port] = true
		} else if ok {
			all = append(all, c)
		}
	}
	kept := all[:0]
	for _, c := range all {
		if listens[c.port] { // others lead to upstreams and the API server
			kept = append(kept, c)
		}
	}
	return kept
}

// socketOf says what a descriptor is, if it is a TCP socket.
func socketOf(fd int) (c connection, listening, ok bool) {
	if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_TCP && proto != unix.IPPROTO_MPTCP {
		return c, false, false // Go listens with MPTCP where the kernel has it
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return c, false, false
	}
	c = connection{fd: fd, port: addrPort(own).Port()}
	if accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && accepts == 1 {
		return c, true, false
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return c, false, false
	}
	c.client = addrPort(peer)
	return c, false, true
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// end shuts a connection down. Its descriptor may have been closed since it was looked at and may be
// another socket's now: a second descriptor of it is looked at again, which nobody else closes.
func (c connection) end() {
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	again, _, ok := socketOf(fd)
	if !ok || again.port != c.port || again.client != c.client {
		return
	}
	if unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
		refused.WithLabelValues("connection").Inc()
	}
}
