package flow

import (
	"net/netip"
	"sync"

	"github.com/fairway-net/fairway/internal/api"
)

// A Gate says which connections a datapath may carry that carries them in this process, where
// no rule of the kernel sees both ends: NetworkPolicies (package policy/enforcer). A nil Gate
// lets all pass; one that has no Decide yet, none.
type Gate struct {
	mu     sync.RWMutex
	allows func(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool
	relays map[Relay]bool
}

// A Relay is what carries connections in this process.
type Relay interface {
	// Carries reports whether it has a connection from a client to an address that it calls.
	Carries(proto api.Proto, client, dest netip.AddrPort) bool
	// EndRefused ends the connections that the Gate does not allow any more.
	EndRefused() (ended int)
}

// Decide lets f decide from now on. Any goroutine may call it.
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

// Join lets a relay take part until leave is called.
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

// EndRefused ends the connections of all relays that are not allowed any more.
func (g *Gate) EndRefused() (ended int) {
	for _, c := range g.joined() {
		ended += c.EndRefused()
	}
	return ended
}

// Carries reports whether a relay has a connection from a client to an address that it calls.
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
