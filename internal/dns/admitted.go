package dns

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/acl"
	"github.com/miekg/dns"
)

// admitted are the clients and types of questions that the plugin acl has let pass.
type admitted struct {
	mu    sync.RWMutex
	types map[netip.Addr]uint8
}

// maxAdmitted limits the clients. If there are more, some questions pass the plugin acl once more.
const maxAdmitted = 16384

// has reports whether acl has let a question pass that had the same client and type.
func (a *admitted) has(client netip.Addr, qtype uint16) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.types[client]&typeBit(qtype) != 0
}

func typeBit(qtype uint16) uint8 {
	switch qtype {
	case dns.TypeA:
		return 1
	case dns.TypeAAAA:
		return 2
	}
	return 0
}

// add notes a question that passed acl.
func (a *admitted) add(w dns.ResponseWriter, r *dns.Msg) {
	from, ok := w.RemoteAddr().(*net.UDPAddr)
	if !ok || len(r.Question) != 1 {
		return
	}
	client, bit := from.AddrPort().Addr().Unmap(), typeBit(r.Question[0].Qtype)
	if bit == 0 || a.has(client, r.Question[0].Qtype) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for other := range a.types {
		if len(a.types) < maxAdmitted {
			break
		}
		delete(a.types, other)
	}
	a.types[client] |= bit
}

// watch puts itself behind the plugin acl of a configuration.
func (a *admitted) watch(config *dnsserver.Config) {
	for i, setup := range config.Plugin {
		config.Plugin[i] = func(next plugin.Handler) plugin.Handler {
			h := setup(next)
			rules, ok := h.(acl.ACL)
			if !ok {
				return h
			}
			rules.Next = plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				a.add(w, r)
				return plugin.NextOrFailure("acl", next, ctx, w, r)
			})
			return rules
		}
	}
}
