package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// A TerminationPolicy says which TCP connections end because of what became of their endpoint.
type TerminationPolicy uint8

// The ways of closing connections, as in the annotation fairway.net/close-connections.
const (
	// TerminateGone ends those to endpoints that have left the Service altogether: the pod is
	// deleted, or its node. Who is merely not ready any more goes on with what he has.
	TerminateGone TerminationPolicy = iota
	// TerminateUnready ends those to endpoints that do not serve any more, for whatever reason.
	TerminateUnready
	// TerminateNever ends none.
	TerminateNever
	closingCount
)

var closingNames = [closingCount]string{"gone", "unready", "never"}

// String returns "gone", "unready" or "never".
func (c TerminationPolicy) String() string { return closingNames[c] }

// ParseTerminationPolicy is the inverse of String.
func ParseTerminationPolicy(s string) (TerminationPolicy, error) {
	if i := slices.Index(closingNames[:], s); i >= 0 {
		return TerminationPolicy(i), nil
	}
	return TerminateGone, fmt.Errorf("%q is none of gone, unready, never", s)
}

// A Flow is what the kernel remembers of a client that used a Frontend: packets to
// Frontend go to Endpoint. An invalid Endpoint is a flow that was never translated.
type Flow struct {
	Proto    Proto
	Frontend netip.AddrPort // with the unspecified address: this port on any of the node's
	Endpoint netip.AddrPort
	// Unserved narrows a Frontend with the unspecified address to the addresses on which
	// NodePorts are not served any more: those outside the new Settings.NodePorts.
	Unserved bool
	// Doubt says that nobody knows whether the endpoint is gone: a pod that left a Service
	// may live (its labels were changed, or the Service was deleted). Before a connection is
	// closed, ask whether Namespace still has a pod with that address that has not ended.
	Doubt     bool
	Namespace string // the Service's
}

// Stale returns the flows that the change from one table to another made wrong, sorted.
//
// A UDP flow is wrong when its endpoint does not even serve any more, or when the
// frontend is gone; and a frontend that gets its first endpoints makes flows wrong that
// passed untranslated before. A client that keeps its port would have its flow for ever.
//
// A TCP connection is wrong when its endpoint is no longer one that keeps connections
// (Frontend.Close); that its frontend is gone does it no harm while the Service has the
// endpoint at another.
//
// Its cost is that of Diff.
func Stale(from, to *Table) []Flow {
	var flows []Flow
	add := func(c Change, f Flow) {
		f.Proto, f.Frontend = c.Key().Proto, c.Key().Addr
		f.Namespace = c.service().Namespace
		flows = append(flows, f)
	}
	for _, c := range changed(from, to) {
		switch c.Key().Proto {
		case UDP:
			for _, a := range c.lost() {
				add(*c, Flow{Endpoint: a})
			}
			if !c.Old.keeps() && c.New.keeps() {
				add(*c, Flow{})
			}
		case TCP:
			closing, kept := c.closing(to)
			if closing == TerminateNever {
				continue
			}
			for _, a := range c.lost() {
				if !kept(a) {
					add(*c, Flow{Endpoint: a, Doubt: closing == TerminateGone})
				}
			}
		}
	}
	flows = append(flows, moved(from, to)...)
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), cmp.Compare(a.Proto, b.Proto), a.Endpoint.Compare(b.Endpoint))
	})
	return flows
}

// service returns the Service that had the frontend, or has it now if nobody had it.
func (c Change) service() Name {
	if c.Old != nil {
		return c.Old.Service.Name
	}
	return c.New.Service.Name
}

// lost returns the endpoints that may not keep their flows any more, sorted.
func (c Change) lost() []netip.AddrPort {
	if !c.Old.keeps() {
		return nil
	}
	keep := c.New.keepers()
	return slices.DeleteFunc(c.Old.keepers(), func(a netip.AddrPort) bool {
		for len(keep) > 0 && keep[0].Compare(a) < 0 {
			keep = keep[1:] // both are sorted
		}
		return len(keep) > 0 && keep[0] == a
	})
}

// closing returns which connections the Service that had the frontend closes, and
// whether it keeps those to an endpoint for another frontend's sake.
func (c Change) closing(to *Table) (TerminationPolicy, func(netip.AddrPort) bool) {
	if c.Old == nil {
		return TerminateNever, nil // nobody has a connection yet
	}
	e := to.Entry(c.Old.Service.Name)
	if e == nil || len(e.Frontends) == 0 {
		return c.Old.Termination, func(netip.AddrPort) bool { return false }
	}
	closing := e.Frontends[0].Termination // all have the same
	if c.New != nil && c.New.Service.Name == e.Name {
		return closing, func(netip.AddrPort) bool { return false }
	}
	return closing, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(e.Frontends, func(f *Frontend) bool {
			return f.Proto == TCP && slices.Contains(f.keepers(), a)
		})
	}
}

// moved returns the UDP flows that are wrong because NodePorts are served on other
// addresses now.
func moved(from, to *Table) []Flow {
	was, is := from.Settings.NodePorts, to.Settings.NodePorts
	if samePrefixes(was, is) {
		return nil
	}
	var flows []Flow
	for f := range to.Frontends() {
		if f.Proto != UDP || !f.NodePort() || !from.has(f.Service.Name, f.Key()) {
			continue
		}
		flow := Flow{Proto: UDP, Frontend: f.Addr, Namespace: f.Service.Namespace}
		if f.keeps() {
			flows = append(flows, flow) // to a new address, when nobody served there
		}
		for _, a := range f.keepers() {
			flow.Endpoint, flow.Unserved = a, true
			flows = append(flows, flow)
		}
	}
	return flows
}

// has reports whether the Service has a frontend of that key.
func (t *Table) has(n Name, k Key) bool {
	e := t.Entry(n)
	return e != nil && slices.ContainsFunc(e.Frontends, func(f *Frontend) bool { return f.Key() == k })
}

// keeps reports whether f has any keepers. f may be nil.
func (f *Frontend) keeps() bool {
	return f != nil && len(f.Retained)+len(f.Internal.Endpoints)+len(f.External.Endpoints) > 0
}

// keepers returns the endpoints whose flows may live, sorted; the list is the caller's.
// f may be nil.
func (f *Frontend) keepers() []netip.AddrPort {
	if f == nil {
		return nil
	}
	all := make([]netip.AddrPort, 0, len(f.Retained)+len(f.Internal.Endpoints))
	all = append(all, f.Retained...)
	for _, e := range f.Internal.Endpoints {
		all = append(all, e.Addr)
	}
	if f.External != f.Internal {
		for _, e := range f.External.Endpoints {
			all = append(all, e.Addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}
