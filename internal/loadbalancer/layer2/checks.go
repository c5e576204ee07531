package layer2

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// askSoon is the pause between two requests until the proxy serves a Service, and askLater the pause afterwards. The
	// API server tells sooner when endpoints go.
	askSoon, askLater = 50 * time.Millisecond, 2 * time.Second
	// askTimeout bounds one request.
	askTimeout = time.Second
)

// A checks asks this node's proxy at healthCheckNodePorts, as cloud load balancers do, whether the kernel serves a
// Service with externalTrafficPolicy: Local. So a speaker works with every proxy.
type checks struct {
	client *http.Client
	wake   chan struct{} // receives when an answer has changed

	mu           sync.Mutex
	addr         netip.Addr // of this node
	ports        map[uint16]*answer
	portsChanged chan struct{} // receives when set has added a port
}

type answer struct {
	served bool
	next   time.Time // of the next request
}

func newChecks() *checks {
	return &checks{
		client: &http.Client{Timeout: askTimeout, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}},
		wake:   make(chan struct{}, 1), portsChanged: make(chan struct{}, 1), ports: map[uint16]*answer{},
	}
}

// served returns the last answer of a port; false: no answer yet.
func (c *checks) served(port uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.ports[port]
	return a != nil && a.served
}

// set sets the ports to ask, at an address of this node.
func (c *checks) set(addr netip.Addr, ports map[uint16]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addr = addr
	for p := range c.ports {
		if !ports[p] {
			delete(c.ports, p)
		}
	}
	for p := range ports {
		if c.ports[p] == nil {
			c.ports[p] = &answer{}
			select {
			case c.portsChanged <- struct{}{}:
			default:
			}
		}
	}
}

// run asks until ctx ends.
func (c *checks) run(ctx context.Context) error {
	defer c.client.CloseIdleConnections()
	for {
		pause := time.NewTimer(c.askAll(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-c.portsChanged:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// askAll asks the ports whose time has come, and returns the time until the next request.
func (c *checks) askAll(ctx context.Context) time.Duration {
	c.mu.Lock()
	var due []uint16
	addr, now := c.addr, time.Now()
	for p, a := range c.ports {
		if !now.Before(a.next) {
			due = append(due, p)
		}
	}
	c.mu.Unlock()
	var all sync.WaitGroup
	limit := make(chan struct{}, 16)
	for _, p := range due {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			c.note(p, c.ask(ctx, netip.AddrPortFrom(addr, p)))
		})
	}
	all.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	soonest := time.Now().Add(askLater)
	for _, a := range c.ports {
		if a.next.Before(soonest) {
			soonest = a.next
		}
	}
	return max(time.Millisecond, time.Until(soonest))
}

// note keeps the answer of a port.
func (c *checks) note(port uint16, served bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.ports[port]
	if a == nil {
		return
	}
	a.next = time.Now().Add(askLater)
	if !served {
		a.next = time.Now().Add(askSoon)
	}
	if a.served != served {
		a.served = served
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// ask reports whether a port answers that the Service is served.
func (c *checks) ask(ctx context.Context, at netip.AddrPort) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", at), nil)
	if err != nil {
		return false
	}
	r, err := c.client.Do(req)
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}
