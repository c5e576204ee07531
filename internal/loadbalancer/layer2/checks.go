package layer2

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// How often the node's proxy is asked about a Service: soon until it serves it, then now and
// then. Endpoints that go are known from the API server, sooner.
const (
	askSoon  = 50 * time.Millisecond
	askLater = 2 * time.Second
	askLimit = time.Second
)

// checks ask the node's proxy whether the kernel serves a Service with
// externalTrafficPolicy: Local here, at its healthCheckNodePort, as cloud load balancers do.
// So a speaker needs nothing of the agent but what every proxy has.
type checks struct {
	client *http.Client
	wake   chan struct{} // an answer changed

	mu           sync.Mutex
	addr         netip.Addr // the node's own
	ports        map[uint16]*answer
	portsChanged chan struct{} // set has changed ports
}

type answer struct {
	served bool
	next   time.Time
}

func newChecks() *checks {
	return &checks{
		client: &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}},
		wake:   make(chan struct{}, 1), portsChanged: make(chan struct{}, 1), ports: map[uint16]*answer{},
	}
}

// served reports the last answer.
func (c *checks) served(port uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.ports[port]
	return a != nil && a.served
}

// set says which ports are asked.
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

// askAll asks those that are due, and returns when the next one is.
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
