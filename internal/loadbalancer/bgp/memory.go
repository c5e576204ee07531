package bgp

import (
	"fmt"
	"log/slog"
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
	of    map[*session]*account
	total int
}

// An account is a session's part of a ledger.
type account struct {
	routes  map[string]int // by prefix
	total   int
	refused bool // the session ends, and its routes do not count
}

// update counts the routes of an UPDATE message, each of size bytes. It returns the session with the most memory if all
// sessions together exceed the limit, once for each session; otherwise nil.
func (l *ledger) update(s *session, withdrawn, routes []wire.PathNLRI, size int) (greedy *session) {
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

// forget removes a session, whose routes GoBGP has dropped.
func (l *ledger) forget(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.of[s]; a != nil {
		l.total -= a.total
		delete(l.of, s)
	}
}

// received counts an UPDATE message, as GoBGP logs it before it stores the routes. It ends the session of the router
// whose routes need too much memory.
func (s *session) received(attrs map[string]slog.Value) {
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
	greedy := s.ledger.update(s, withdrawn, routes, size)
	if greedy == nil {
		return
	}
	greedy.mu.Lock()
	defer greedy.mu.Unlock()
	greedy.refuse(fmt.Sprintf("the routes of all routers need more than %d MiB of memory, and this router sent most of them [filter what it sends to nodes]", maxMemory>>20))
}
