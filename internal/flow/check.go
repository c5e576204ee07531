package flow

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// A Checker knows which flows a table allows. It belongs to one goroutine.
type Checker struct {
	table *service.Table
	index map[service.Key]*service.Frontend // nil: not built yet
}

// NewChecker returns a Checker of flows. It is for an agent that starts and does not know
// which tables came before: Stale costs less where they are known.
func NewChecker(t *service.Table) *Checker { return &Checker{table: t} }

// build makes the table's frontends be found by their key. A node without flows does not
// need it, and it is large.
func (c *Checker) build() {
	c.index = map[service.Key]*service.Frontend{}
	for f := range c.table.Frontends() {
		if f.Proto != service.SCTP {
			c.index[f.Key()] = f
		}
	}
}

// Check reports whether an existing flow is wrong, and returns it as EndFlows wants it. Its
// Frontend is where the client really sends to, and its Endpoint where the reply comes
// from: the same if the flow is not translated. local reports whether an address is this
// machine's; it is called for untranslated flows only.
//
// Of a flow to an address that has no Frontend it is not known whose it was, except in the
// ranges that ClusterIPs are taken from.
func (c *Checker) Check(f Flow, local func(netip.Addr) bool) (wrong Flow, is bool) {
	translated := f.Endpoint != f.Frontend
	front := c.frontend(f)
	switch {
	case front == nil:
		ours := slices.ContainsFunc(c.table.Settings.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(f.Frontend.Addr()) })
		return f, ours && translated && f.Proto == service.UDP
	case !translated:
		f.Endpoint = netip.AddrPort{}
		return f, f.Proto == service.UDP && front.KeepsFlows() && (!front.NodePort() || local(f.Frontend.Addr()))
	case front.KeepsFlowsTo(f.Endpoint):
		return f, false
	case f.Proto == service.UDP:
		return f, true
	}
	f.Unconfirmed, f.Namespace = front.Termination == service.TerminateGone, front.Service.Namespace
	return f, front.Termination != service.TerminateNever
}

// frontend returns the frontend that answers at the flow's address, nil if there is none.
func (c *Checker) frontend(f Flow) *service.Frontend {
	if c.index == nil {
		c.build()
	}
	if front := c.index[service.Key{Addr: f.Frontend, Proto: f.Proto}]; front != nil {
		return front
	}
	if !c.table.Settings.ServesNodePorts(f.Frontend.Addr()) {
		return nil
	}
	return c.index[service.Key{Addr: netip.AddrPortFrom(unspecified(f.Frontend.Addr()), f.Frontend.Port()), Proto: f.Proto}]
}

// unspecified returns the unspecified address of the family of a.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
