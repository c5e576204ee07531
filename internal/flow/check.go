package flow

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Checker decides which existing flows a table allows. It belongs to one goroutine.
type Checker struct {
	table *service.Table
	index *service.Index // nil until the first Check
}

// NewChecker returns a Checker for a table. It is for an agent that starts and does not know the earlier tables. If
// they are known, Stale is cheaper.
func NewChecker(t *service.Table) *Checker { return &Checker{table: t} }

// Check reports whether an existing flow is wrong, and returns the Flow for EndFlows. f.Frontend is the original
// destination, and f.Endpoint is the source of the replies. Both are equal for an untranslated flow. local reports
// whether an address belongs to this machine. Check calls it for untranslated flows only.
//
// Check cannot know the Service of a flow to an address without a frontend. It reports the flow as wrong only if the
// protocol is UDP and the address is in a range of ClusterIPs.
func (c *Checker) Check(f Flow, local func(netip.Addr) bool) (wrong Flow, is bool) {
	if c.index == nil { // the index is large, and a node without flows does not need it
		c.index = service.NewIndex(c.table)
	}
	at := service.Key{Addr: f.Frontend, Proto: f.Proto}
	if f.Endpoint == f.Frontend {
		front := c.index.Frontend(at, local(f.Frontend.Addr()))
		f.Endpoint, f.OnlyUnanswered = netip.AddrPort{}, f.Proto == api.TCP
		return f, front.KeepsFlows()
	}
	// A translated flow came to this node, even if the node no longer has the address.
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
	f.OnlyUnanswered = front.Termination == service.TerminateNever || front.KeepsFlowsTo(f.Endpoint)
	f.Unconfirmed = !f.OnlyUnanswered && front.Termination == service.TerminateGone
	return f, true
}
