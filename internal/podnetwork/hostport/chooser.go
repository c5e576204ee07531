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

// Backends are where a port leads.
type Backends struct {
	Endpoints []service.Endpoint // for new connections, at least one
	// Affinity is how long the next connections have the endpoint of the last one; 0: not at all. All of
	// the node's processes are one client, as they are to a datapath.
	Affinity time.Duration
	// Keeps reports whether connections to an endpoint go on. Nil: those to Endpoints do.
	Keeps func(netip.AddrPort) bool
}

// To is a port that leads to one pod.
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

// pick is one of the endpoints, as often as its weight says.
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

// A chooser chooses the endpoint of each connection, and ends connections whose endpoint may
// have none any more. Any goroutine may call it.
type chooser struct {
	port context.Context // ends when the port closes

	mu   sync.Mutex
	now  Backends
	used map[netip.AddrPort]*lead
	last netip.AddrPort // of the last connection
	when time.Time      // it was made
}

// A lead is an endpoint that has, or had, connections.
type lead struct {
	ctx context.Context // ends with them
	end context.CancelFunc
}

func newChooser(port context.Context, b Backends) *chooser {
	return &chooser{port: port, now: b, used: map[netip.AddrPort]*lead{}}
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

// choose returns an endpoint, and a context that ends when its connections have to.
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
		l = &lead{ctx, end}
		c.used[to] = l
	}
	return to, l.ctx
}
