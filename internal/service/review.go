package service

import (
	"net/netip"
	"slices"
)

// A Judge knows which flows a Table allows. It belongs to one goroutine.
type Judge struct {
	table *Table
	local func(netip.Addr) bool
	at    map[Key]*Frontend // nil: not asked yet
}

// Review returns a Judge of flows. It is for an agent that starts and does not know
// which tables came before: Stale costs less where they are known. local reports whether
// an address is this machine's.
func (t *Table) Review(local func(netip.Addr) bool) *Judge {
	return &Judge{table: t, local: local}
}

// index makes the table's frontends be found by their key. A node without flows does not
// need it, and it is large.
func (j *Judge) index() {
	j.at = map[Key]*Frontend{}
	for f := range j.table.Frontends() {
		if f.Proto != SCTP {
			j.at[f.Key()] = f
		}
	}
}

// Wrong reports whether a flow that exists should not, and how to end it. Its Frontend
// is where the client really sends to, and its Endpoint who answers: the same if the
// flow is not translated.
//
// Nobody can tell whose a flow was to an address that has no Frontend, except in the
// ranges that ClusterIPs are taken from.
func (j *Judge) Wrong(f Flow) (Flow, bool) {
	translated := f.Endpoint != f.Frontend
	front := j.frontend(f)
	switch {
	case front == nil:
		own := slices.ContainsFunc(j.table.Settings.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(f.Frontend.Addr()) })
		return f, own && translated && f.Proto == UDP
	case !translated:
		f.Endpoint = netip.AddrPort{}
		return f, f.Proto == UDP && front.keeps() && (!front.NodePort() || j.local(f.Frontend.Addr()))
	case front.keepsTo(f.Endpoint):
		return f, false
	case f.Proto == UDP:
		return f, true
	}
	f.Doubt, f.Namespace = front.Termination == TerminateGone, front.Service.Namespace
	return f, front.Termination != TerminateNever
}

// keepsTo reports whether flows to the endpoint may live.
func (f *Frontend) keepsTo(a netip.AddrPort) bool {
	if _, ok := slices.BinarySearchFunc(f.Retained, a, netip.AddrPort.Compare); ok {
		return true
	}
	for _, r := range [...]*Route{f.Internal, f.External} {
		_, ok := slices.BinarySearchFunc(r.Endpoints, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		if ok {
			return true
		}
	}
	return false
}

// frontend returns who answers at the flow's address, nil if nobody does.
func (j *Judge) frontend(f Flow) *Frontend {
	if j.at == nil {
		j.index()
	}
	if front := j.at[Key{f.Frontend, f.Proto}]; front != nil {
		return front
	}
	any := netip.IPv6Unspecified()
	if f.Frontend.Addr().Is4() {
		any = netip.IPv4Unspecified()
	}
	if !j.table.Settings.ServesNodePorts(f.Frontend.Addr()) {
		return nil
	}
	return j.at[Key{netip.AddrPortFrom(any, f.Frontend.Port()), f.Proto}]
}

// ServesNodePorts reports whether NodePorts are served on an address, if it is one of
// this node's.
func (s Settings) ServesNodePorts(a netip.Addr) bool {
	return !a.IsLoopback() && slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
}
