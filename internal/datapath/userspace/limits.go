package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
)

// Connections use descriptors and ports that all clients and Services of the node share. One client may have as many as
// are still free, and one Service twice as many. So one client gets at most a half. Each of n greedy clients gets an
// equal part, and a part of that size stays free for all others. There is no setting, and no refusal while much is
// free.
const (
	clientShare  = 1
	serviceShare = 2
	// For a client with few connections, its Service may have fewShare times as many as are free. So such a client is
	// refused later because of other clients of its Service.
	few      = 16
	fewShare = 4
)

// Descriptors that a connection or flow needs: two for its sockets, and while it splices two for the pipe of each
// direction.
const (
	connFiles = 2
	pipeFiles = 2
)

// The agent reserves descriptors for itself: for the API server, netlink and child processes.
const (
	reservedFiles = 1024
	reservedPart  = 4 // the reserve is at most 1/reservedPart of the limit
)

// A holder is the client and the Service that a connection counts for.
type holder struct {
	client  netip.Prefix
	service api.Name
}

// holderOf returns the holder of a client's connections. An external IPv6 client counts as its /64 network, because it
// can have any address in the network. A pod has one address.
func holderOf(f *proxyFrontend, s scope, client netip.Addr) holder {
	bits := client.BitLen()
	if client.Is6() && s == fromExternal {
		bits = 64
	}
	network, err := client.Prefix(bits)
	if err != nil {
		network = netip.PrefixFrom(client, client.BitLen())
	}
	return holder{network, f.Service.Name}
}

// A budget is an amount of a resource that clients and Services share. The mutex of the proxy's limits guards all
// budgets.
type budget struct {
	total, used int
	clients     map[netip.Prefix]int
	services    map[api.Name]int
}

// allows reports whether a holder may have n more.
func (b *budget) allows(h holder, n int) bool {
	free, client := b.total-b.used-n, b.clients[h.client]+n
	share := serviceShare
	if client <= few*n {
		share = fewShare
	}
	return free >= 0 && client <= clientShare*free && b.services[h.service]+n <= share*free
}

// add changes the amount of a holder by n.
func (b *budget) add(h holder, n int) {
	if b.clients == nil {
		b.clients, b.services = map[netip.Prefix]int{}, map[api.Name]int{}
	}
	b.used += n
	if b.clients[h.client] += n; b.clients[h.client] == 0 {
		delete(b.clients, h.client)
	}
	if b.services[h.service] += n; b.services[h.service] == 0 {
		delete(b.services, h.service)
	}
}

// limits prevent one client or one Service from using up a resource that all need.
type limits struct {
	log *slog.Logger

	mu       sync.Mutex
	files    budget               // file descriptors
	flows    budget               // UDP flows
	udpPorts budget               // the node's ports, for UDP flows that do not keep the client's address
	tcpPorts int                  // the node's ports for TCP connections to one endpoint
	silence  map[string]time.Time // message → the earliest time to log it again
}

// newLimits returns the limits for a number of descriptors. 0 means the limit of the process less the agent's reserve.
// The caller is in the node's network namespace.
func newLimits(log *slog.Logger, files int) (*limits, error) {
	if files == 0 {
		var max unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &max); err != nil {
			return nil, fmt.Errorf("get limit of open files: %w", err)
		}
		all := int(min(max.Cur, 1<<30))
		files = all - min(reservedFiles, all/reservedPart)
	}
	ports := localPorts()
	return &limits{
		log: log, files: budget{total: files}, flows: budget{total: maxFlows}, udpPorts: budget{total: ports / 2}, tcpPorts: ports,
		silence: map[string]time.Time{},
	}, nil
}

// acquire takes n of a budget for a holder. If the holder may not have n more, acquire logs that and returns false.
func (l *limits) acquire(h holder, n int, b *budget) bool {
	if l.tryAcquire(h, n, b) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warn("refuse connections: a client or a Service has its share", "of", l.name(b), "client", h.client, "service", h.service,
		"clientHas", b.clients[h.client], "serviceHas", b.services[h.service], "used", b.used, "total", b.total)
	return false
}

// tryAcquire is acquire without the log message, for a resource that the connection does not need.
func (l *limits) tryAcquire(h holder, n int, b *budget) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !b.allows(h, n) {
		return false
	}
	b.add(h, n)
	return true
}

// release gives back n that acquire took.
func (l *limits) release(h holder, n int, b *budget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.add(h, -n)
}

// name returns the name of a budget in messages.
func (l *limits) name(b *budget) string {
	switch b {
	case &l.files:
		return "descriptors"
	case &l.flows:
		return "UDP flows"
	case &l.udpPorts:
		return "UDP ports"
	}
	return "TCP ports"
}

// logExhausted logs an error that says that the node or the process is out of a resource.
func (l *limits) logExhausted(err error) {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.warn("clients wait: the node is out of resources [raise the limit of open files, or fs.file-max]", "err", err)
	}
}

// logPause is the time before a message is logged again.
const logPause = time.Minute

// warn logs a message, unless it was logged within logPause. The caller holds mu.
func (l *limits) warn(msg string, args ...any) {
	if now := time.Now(); l.log != nil && !now.Before(l.silence[msg]) {
		l.silence[msg] = now.Add(logPause)
		l.log.Warn(msg, args...)
	}
}
