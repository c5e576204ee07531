package userspace

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

var _ flow.Relay = (*proxy)(nil)

// allows reports whether a client may be connected to an endpoint. The node's own clients are
// not asked about: its pods must accept them, and other nodes decide about theirs.
func (p *proxy) allows(proto api.Proto, s scope, client netip.Addr, endpoint netip.AddrPort) bool {
	return s == fromNode || p.gate.Allows(proto, client, endpoint)
}

// allowed reports whether a session may go on.
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
