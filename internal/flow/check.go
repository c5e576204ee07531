package flow

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Checker knows which flows a table allows. It belongs to one goroutine.
type Checker struct {
	table *service.Table
	index *service.Index // nil: not built yet
}

// NewChecker returns a Checker of flows. It is for an agent that starts and does not know
// which tables came before: Stale costs less where they are known.
func NewChecker(t *service.Table) *Checker { return &Checker{table: t} }

// Check reports whether an existing flow is wrong, and returns it as EndFlows wants it. Its
// Frontend is where the client really sends to, and its Endpoint where the reply comes
// from: the same if the flow is not translated. local reports whether an address is this
// machine's; it is called for untranslated flows only.
//
// Of a flow to an address that has no Frontend it is not known whose it was, except in the
// ranges that ClusterIPs are taken from.
func (c *Checker) Check(f Flow, local func(netip.Addr) bool) (wrong Flow, is bool) {
	if c.index == nil { // a node without flows does not need it, and it is large
		c.index = service.NewIndex(c.table)
	}
	at := service.Key{Addr: f.Frontend, Proto: f.Proto}
	if f.Endpoint == f.Frontend {
		front := c.index.Frontend(at, local(f.Frontend.Addr()))
		f.Endpoint = netip.AddrPort{}
		return f, f.Proto == api.UDP && front.KeepsFlows()
	}
	// What is translated came to this node, also if the address is not the node's any more.
	front := c.index.Frontend(at, true)
	switch {
	case front == nil:
		ours := slices.ContainsFunc(c.table.Settings.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(f.Frontend.Addr()) })
		return f, ours && f.Proto == api.UDP
	case f.Proto == api.UDP:
		return f, !front.KeepsFlowsTo(f.Endpoint)
	case front.RoutesTo(f.Endpoint):
		return f, false
	}
	f.Namespace = front.Service.Namespace
	f.Unanswered = front.Termination == service.TerminateNever || front.KeepsFlowsTo(f.Endpoint)
	f.Unconfirmed = !f.Unanswered && front.Termination == service.TerminateGone
	return f, true
}
