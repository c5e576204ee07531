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

// A Health asks this node's proxy at healthCheckNodePorts, as cloud load balancers do, whether the kernel serves a Service
// with externalTrafficPolicy: Local. So a speaker works with every proxy. BGP uses a Health of its own. The methods may be
// called by any goroutine.
type Health struct {
	client *http.Client
	wake   chan struct{} // receives when an answer has changed

	mu           sync.Mutex
	addr         netip.Addr // of this node
	ports        map[uint16]*answer
	portsChanged chan struct{} // receives when Set has added a port
}

type answer struct {
	served bool
	next   time.Time // of the next request
}

// NewHealth returns a Health that asks no port yet.
func NewHealth() *Health {
	return &Health{
		client: &http.Client{Timeout: askTimeout, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}},
		wake:   make(chan struct{}, 1), portsChanged: make(chan struct{}, 1), ports: map[uint16]*answer{},
	}
}

// Changed returns a channel that receives when an answer has changed.
func (h *Health) Changed() <-chan struct{} { return h.wake }

// Served returns the last answer of a port; false: no answer yet.
func (h *Health) Served(port uint16) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.ports[port]
	return a != nil && a.served
}

// Set replaces the ports to ask, at an address of this node: healthCheckNodePorts, and the proxy's own port.
func (h *Health) Set(addr netip.Addr, ports map[uint16]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addr = addr
	for p := range h.ports {
		if !ports[p] {
			delete(h.ports, p)
		}
	}
	for p := range ports {
		if h.ports[p] == nil {
			h.ports[p] = &answer{}
			select {
			case h.portsChanged <- struct{}{}:
			default:
			}
		}
	}
}

// Run asks until ctx ends.
func (h *Health) Run(ctx context.Context) error {
	defer h.client.CloseIdleConnections()
	for {
		pause := time.NewTimer(h.askAll(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-h.portsChanged:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// askAll asks the ports whose time has come, and returns the time until the next request.
func (h *Health) askAll(ctx context.Context) time.Duration {
	h.mu.Lock()
	var due []uint16
	addr, now := h.addr, time.Now()
	for p, a := range h.ports {
		if !now.Before(a.next) {
			due = append(due, p)
		}
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	limit := make(chan struct{}, 16)
	for _, p := range due {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			h.note(p, h.ask(ctx, netip.AddrPortFrom(addr, p)))
		})
	}
	all.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	soonest := time.Now().Add(askLater)
	for _, a := range h.ports {
		if a.next.Before(soonest) {
			soonest = a.next
		}
	}
	return max(time.Millisecond, time.Until(soonest))
}

// note keeps the answer of a port.
func (h *Health) note(port uint16, served bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.ports[port]
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
		case h.wake <- struct{}{}:
		default:
		}
	}
}

// ask reports whether a port answers that the Service is served.
func (h *Health) ask(ctx context.Context, at netip.AddrPort) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", at), nil)
	if err != nil {
		return false
	}
	r, err := h.client.Do(req)
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}
