package status

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// countAgain is how long a Counter's numbers are used. Frequent requests of /statusz must not make the agent count
// 50,000 Services each time.
const countAgain = time.Second

// A Counter counts Services, addresses and endpoints of a table. The zero value works. Any goroutine may use it.
type Counter struct {
	mu                             sync.Mutex
	table                          *service.Table
	counted                        time.Time
	services, addresses, endpoints int
}

// Count returns the numbers of Services, of their addresses and of their endpoints. t may be nil. The numbers may be a
// second old.
func (c *Counter) Count(t *service.Table) (services, addresses, endpoints int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t != c.table && time.Since(c.counted) >= countAgain {
		c.table, c.services, c.addresses, c.endpoints = t, 0, 0, 0
		for e := range t.Entries() {
			if len(e.Frontends) == 0 {
				continue
			}
			c.services++
			c.addresses += len(e.Frontends)
			c.endpoints += endpointsOf(e)
		}
		c.counted = time.Now()
	}
	return c.services, c.addresses, c.endpoints
}

// endpointsOf returns the number of different endpoints of a Service's frontends.
func endpointsOf(e *service.Entry) int {
	seen := map[netip.AddrPort]struct{}{}
	routes := map[*service.Route]struct{}{}
	for _, f := range e.Frontends {
		for _, r := range []*service.Route{f.Internal, f.External} {
			if _, ok := routes[r]; ok {
				continue
			}
			routes[r] = struct{}{}
			for _, one := range r.Endpoints {
				seen[one.Addr] = struct{}{}
			}
		}
	}
	return len(seen)
}
