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

// CoreDNS accepts every connection, and so do its servers for health, readiness and metrics. The memory for ten thousand
// connections of one pod makes the kernel end the DNS server. CoreDNS has no place for a limit, so the process looks at
// its own sockets. It shuts down excess connections, which ends the goroutines that read them.
const (
	maxConnections  = 2048 // of one port; clients have shares of them
	lookConnections = 100 * time.Millisecond
)

// A connection is a TCP connection that a port of this process accepted.
type connection struct {
	fd     int
	port   uint16
	client netip.AddrPort
}

// limitConnections shuts down connections of greedy clients until ctx ends.
func limitConnections(ctx context.Context) {
	limit := maxConnections
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/2 < maxConnections {
		limit = int(files.Cur / 2) // the other half is for upstreams
	}
	tick := time.NewTicker(lookConnections)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// The size of the directory is the number of descriptors, or 0 before Linux 6.2.
		if dir, err := os.Stat("/proc/self/fd"); err == nil && (dir.Size() == 0 || dir.Size() > int64(limit/2)) {
			for _, c := range tooMany(connections(), limit) {
				c.shutdown()
			}
		}
	}
}

// tooMany returns the connections beyond the clients' shares of a port, which has at most limit connections. The greediest
// clients come first, because their excess connections increase the shares of the other clients.
func tooMany(all []connection, limit int) (excess []connection) {
	type key struct {
		port   uint16
		client netip.Addr
	}
	byClient, total := map[key][]connection{}, map[uint16]int{}
	for _, c := range all {
		k := key{c.port, c.client.Addr()}
		byClient[k] = append(byClient[k], c)
		total[c.port]++
	}
	greediest := slices.SortedFunc(maps.Keys(byClient), func(a, b key) int {
		return cmp.Or(cmp.Compare(len(byClient[b]), len(byClient[a])), a.client.Compare(b.client))
	})
	for _, k := range greediest {
		for have := byClient[k]; len(have) > max(1, limit-total[k.port]); have = have[:len(have)-1] {
			excess = append(excess, have[len(have)-1])
			total[k.port]--
		}
	}
	return excess
}

// connections returns the connections that this process has accepted.
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
		if listens[c.port] { // other connections lead to upstreams and the API server
			kept = append(kept, c)
		}
	}
	return kept
}

// socketOf describes a descriptor. listening is true for a listening TCP socket, ok for a connection.
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

// shutdown shuts a connection down. The descriptor may belong to another socket by now. So shutdown duplicates it, and
// looks again at the duplicate, which nobody else can close.
func (c connection) shutdown() {
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
