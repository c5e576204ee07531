package userspace

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

var _ flow.Relay = (*proxy)(nil)

// allows reports whether a client may connect to an endpoint. It always allows the node's own clients: pods of this
// node must accept them, and other nodes decide for their pods.
func (p *proxy) allows(proto api.Proto, s scope, client netip.Addr, endpoint netip.AddrPort) bool {
	return s == fromNode || p.gate.Allows(proto, client, endpoint)
}

// allowed reports whether a session may continue.
func (p *proxy) allowed(s *session) bool {
	return p.allows(s.proto, s.scope, s.client.Addr(), s.endpoint)
}

// Carries implements datapath.Relay.
func (p *proxy) Carries(proto api.Proto, client, dest netip.AddrPort) bool {
	k := flowKey{client, dest}
	if proto == api.UDP {
		p.flows.mu.Lock()
		defer p.flows.mu.Unlock()
		return p.flows.all[k] != nil
	}
	p.sessions.mu.Lock()
	defer p.sessions.mu.Unlock()
	return p.sessions.tcp[k] > 0
}

// EndRefused implements datapath.Relay.
func (p *proxy) EndRefused() int {
	all := p.sessions.list(func(s *session) bool { return !p.allowed(s) })
	endSessions(all)
	return len(all)
}
