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

// Connections use up what all clients and Services of the node share. A client may have as
// much of it as is free, and a Service twice as much. So one client gets at most a half, n
// greedy ones get an equal part each, and one such part stays free for all others. Nothing
// has to be configured, and nothing is refused while there is plenty.
const (
	clientShare  = 1
	serviceShare = 2
	// A client that has few is refused later for what others have at its Service.
	few      = 16
	fewShare = 4
)

// What a connection or flow costs: the descriptors of its two sockets, and while it splices
// those of a pipe for each direction.
const (
	connFiles = 2
	pipeFiles = 2
)

// The agent needs descriptors of its own: for the API server, netlink, child processes.
const (
	reservedFiles = 1024
	reservedPart  = 4 // at most this part of the limit
)

// A holder is the client and the Service that a connection is counted for.
type holder struct {
	client  netip.Prefix
	service api.Name
}

// holderOf returns the holder of a client's connections. An external IPv6 client is its
// network, because it has as many addresses as it likes; pods have one.
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

// A budget is an amount of something that clients and Services share. All budgets of
// a proxy are guarded by the mutex of its limits.
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

// add changes what a holder has.
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

// limits keep a client or a Service from using up what all need.
type limits struct {
	log *slog.Logger

	mu       sync.Mutex
	files    budget               // descriptors
	flows    budget               // UDP flows
	udpPorts budget               // the node's ports, of UDP flows that do not keep the client's
	tcpPorts int                  // the node's ports for TCP connections to one endpoint
	silence  map[string]time.Time // until when a message is not logged again
}

// newLimits returns the limits for a number of descriptors; 0: what the process may have,
// less what it needs itself. The caller is in the node's network namespace.
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

// acquire takes n of a budget for a holder. It returns false, and logs that, if the holder may not
// have it.
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

// tryAcquire is acquire for what the holder can do without.
func (l *limits) tryAcquire(h holder, n int, b *budget) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !b.allows(h, n) {
		return false
	}
	b.add(h, n)
	return true
}

// release gives back what acquire took.
func (l *limits) release(h holder, n int, b *budget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.add(h, -n)
}

// name is a budget's name in messages.
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

// logExhausted takes note of an error of the node's or the process's limits.
func (l *limits) logExhausted(err error) {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.warn("clients wait: the node is out of resources [raise the limit of open files, or fs.file-max]", "err", err)
	}
}

// logPause is how long a message is not logged again.
const logPause = time.Minute

// warn logs a message, unless it did so within logPause. The caller holds mu.
func (l *limits) warn(msg string, args ...any) {
	if now := time.Now(); l.log != nil && !now.Before(l.silence[msg]) {
		l.silence[msg] = now.Add(logPause)
		l.log.Warn(msg, args...)
	}
}
