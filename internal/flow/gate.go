package flow

import (
	"net/netip"
	"sync"

	"github.com/fairway-net/fairway/internal/api"
)

// A Gate decides which connections a datapath in user space may carry. The kernel cannot decide, because its rules for
// NetworkPolicies do not see both ends of a relayed connection. Package networkpolicy/enforcer provides the decision. A
// nil Gate allows every connection. A Gate allows none before Decide is called.
type Gate struct {
	mu     sync.RWMutex
	allows func(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool
	relays map[Relay]bool
}

// A Relay carries connections in this process.
type Relay interface {
	// Carries reports whether the relay has a connection from a client to dest, the address that the client called.
	Carries(proto api.Proto, client, dest netip.AddrPort) bool
	// EndRefused ends the connections that the Gate no longer allows, and returns their number.
	EndRefused() (ended int)
}

// Decide sets the function that decides. Any goroutine may call it.
func (g *Gate) Decide(f func(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allows = f
}

// Allows reports whether a client may be connected to an endpoint.
func (g *Gate) Allows(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool {
	if g == nil {
		return true
	}
	g.mu.RLock()
	f := g.allows
	g.mu.RUnlock()
	return f != nil && f(proto, client, endpoint)
}

// Join adds a relay until leave is called.
func (g *Gate) Join(c Relay) (leave func()) {
	if g == nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.relays == nil {
		g.relays = map[Relay]bool{}
	}
	g.relays[c] = true
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.relays, c)
	}
}

// EndRefused ends the connections of all relays that the Gate no longer allows.
func (g *Gate) EndRefused() (ended int) {
	for _, c := range g.joined() {
		ended += c.EndRefused()
	}
	return ended
}

// Carries reports whether any relay has a connection from a client to dest, the address that the client called.
func (g *Gate) Carries(proto api.Proto, client, dest netip.AddrPort) bool {
	for _, c := range g.joined() {
		if c.Carries(proto, client, dest) {
			return true
		}
	}
	return false
}

func (g *Gate) joined() (all []Relay) {
	if g == nil {
		return nil
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for c := range g.relays {
		all = append(all, c)
	}
	return all
}
