package hostport

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Backends are the endpoints behind a port.
type Backends struct {
	Endpoints []service.Endpoint // for new connections, at least one
	// Affinity is the time in which the next connections get the endpoint of the last one. 0: no affinity. All
	// processes of the node are one client, as in a datapath.
	Affinity time.Duration
	// Keeps reports whether connections to an endpoint may continue. Nil: only connections to Endpoints may.
	Keeps func(netip.AddrPort) bool
}

// To returns the Backends of a port that leads to one pod.
func To(pod netip.AddrPort) Backends { return Backends{Endpoints: []service.Endpoint{{Addr: pod}}} }

func (b *Backends) retains(a netip.AddrPort) bool {
	if b.Keeps != nil {
		return b.Keeps(a)
	}
	return b.leads(a)
}

// leads reports whether new connections may go to a.
func (b *Backends) leads(a netip.AddrPort) bool {
	for _, e := range b.Endpoints {
		if e.Addr == a {
			return true
		}
	}
	return false
}

// pick returns a random endpoint, by weight.
func (b *Backends) pick() netip.AddrPort {
	total := 0
	for _, e := range b.Endpoints {
		total += lb.Weight(e)
	}
	n := rand.IntN(total)
	for _, e := range b.Endpoints {
		if n -= lb.Weight(e); n < 0 {
			return e.Addr
		}
	}
	return netip.AddrPort{} // not reached
}

// A chooser chooses the endpoint of each connection, and ends connections to endpoints that may not keep them. Any
// goroutine may call it.
type chooser struct {
	port context.Context // ends when the port closes

	mu   sync.Mutex
	now  Backends
	used map[netip.AddrPort]*endpointState
	last netip.AddrPort // of the last connection
	when time.Time      // it was made
}

// An endpointState is an endpoint that has, or had, connections.
type endpointState struct {
	ctx context.Context // ends with them
	end context.CancelFunc
}

func newChooser(port context.Context, b Backends) *chooser {
	return &chooser{port: port, now: b, used: map[netip.AddrPort]*endpointState{}}
}

func (c *chooser) set(b Backends) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = b
	for a, l := range c.used {
		if !b.retains(a) {
			l.end()
			delete(c.used, a)
		}
	}
}

// choose returns an endpoint, and a context that ends when its connections must end.
func (c *chooser) choose() (netip.AddrPort, context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, now := c.last, time.Now()
	if c.now.Affinity == 0 || now.Sub(c.when) >= c.now.Affinity || !c.now.leads(to) {
		to = c.now.pick()
	}
	c.last, c.when = to, now
	l := c.used[to]
	if l == nil {
		ctx, end := context.WithCancel(c.port)
		l = &endpointState{ctx, end}
		c.used[to] = l
	}
	return to, l.ctx
}
