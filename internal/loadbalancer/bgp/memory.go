package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// GoBGP keeps all routes of a router in memory, also the routes that it rejects. A prefix may have 64 KB of attributes,
// so a limit of prefixes does not bound the memory.
const (
	// maxMemory is the limit for the routes of all routers together, as memoryOf estimates it. It fits into the memory
	// that deploy/components/load-balancer/speaker.yaml allows, with eight sessions.
	maxMemory = 64 << 20
	// routeMemory is the memory of a route without its attributes.
	routeMemory = 1 << 10
	// attributeFactor is the memory of an attribute for each byte in the message: 1 to 10 for attributes that routers
	// send, 27 for a tunnel encapsulation with many empty parts.
	attributeFactor = 32
)

// A ledger has the estimated memory of the routes that routers have sent. It is safe for concurrent use.
type ledger struct {
	mu    sync.Mutex
	of    map[sender]*account
	total int
}

// A sender sends routes to this node: a router's session, or a client of the route reflector.
type sender interface {
	// tooLarge ends the session, because of its routes.
	tooLarge(reason string)
}

// An account is a sender's part of a ledger.
type account struct {
	routes  map[string]int // by prefix
	total   int
	refused bool // the session ends, and its routes do not count
}

// update counts the routes of an UPDATE message, each of size bytes. It returns the sender with the most memory if all
// senders together exceed the limit, once for each session; otherwise nil.
func (l *ledger) update(s sender, withdrawn, routes []wire.PathNLRI, size int) (greedy sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of[s]
	if a == nil {
		a = &account{routes: map[string]int{}}
		l.of[s] = a
	}
	if a.refused {
		return nil
	}
	before := a.total
	for _, n := range withdrawn {
		a.set(n.NLRI.String(), 0)
	}
	for _, n := range routes {
		a.set(n.NLRI.String(), size)
	}
	l.total += a.total - before
	if l.total <= maxMemory {
		return nil
	}
	for other, have := range l.of {
		if greedy == nil || have.total > l.of[greedy].total {
			greedy = other
		}
	}
	l.total -= l.of[greedy].total
	l.of[greedy] = &account{refused: true}
	return greedy
}

func (a *account) set(prefix string, size int) {
	a.total += size - a.routes[prefix]
	if a.routes[prefix] = size; size == 0 {
		delete(a.routes, prefix)
	}
}

// forget removes a sender, whose routes GoBGP has dropped.
func (l *ledger) forget(s sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.of[s]; a != nil {
		l.total -= a.total
		delete(l.of, s)
	}
}

// received counts an UPDATE message, as GoBGP logs it before it stores the routes. It ends the session of the sender whose
// routes need too much memory.
func (l *ledger) received(s sender, attrs map[string]slog.Value) {
	routes, _ := attrs["nlri"].Any().([]wire.PathNLRI)
	withdrawn, _ := attrs["withdrawals"].Any().([]wire.PathNLRI)
	all, _ := attrs["path_attributes"].Any().([]wire.PathAttributeInterface)
	size := routeMemory
	for _, a := range all {
		switch a := a.(type) {
		case *wire.PathAttributeMpReachNLRI:
			routes = append(routes[:len(routes):len(routes)], a.Value...)
		case *wire.PathAttributeMpUnreachNLRI:
			withdrawn = append(withdrawn[:len(withdrawn):len(withdrawn)], a.Value...)
		default:
			size += attributeFactor * a.Len()
		}
	}
	if greedy := l.update(s, withdrawn, routes, size); greedy != nil {
		greedy.tooLarge(fmt.Sprintf("all received routes need more than %d MiB of memory, and this sender's need the most [filter what it sends to nodes]", maxMemory>>20))
	}
}

func (s *session) tooLarge(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse(reason)
}

// A clientSender is a client of a route reflector.
type clientSender struct {
	r    *reflector
	addr netip.Addr
}

func (c clientSender) tooLarge(reason string) {
	c.r.log.Warn("route reflector: the session with a node is reset", "address", c.addr, "reason", reason)
	go c.r.reset(c.addr, reason) // ResetPeer waits for the goroutine that calls this function
}

// A clientLog handles the log of a reflector's GoBGP server. It takes the size of received routes, and drops all other
// records.
type clientLog struct {
	r      *reflector
	client netip.Addr
}

func (clientLog) Enabled(_ context.Context, l slog.Level) bool { return l == slog.LevelDebug }
func (h clientLog) WithGroup(string) slog.Handler              { return h }
func (h clientLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if addr, err := netip.ParseAddr(a.Value.String()); a.Key == "Key" && err == nil {
			h.client = addr
		}
	}
	return h
}

func (h clientLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == updateRecord {
		h.r.ledger.received(clientSender{h.r, h.client}, attributes(r))
	}
	return nil
}

// updateRecord is the message of GoBGP's log about an UPDATE message.
const updateRecord = "received update"

// attributes returns the attributes of a record by key.
func attributes(r slog.Record) map[string]slog.Value {
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		return true
	})
	return attrs
}
