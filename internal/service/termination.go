package service

import (
	"fmt"
	"net/netip"
	"slices"
)

// A TerminationPolicy says when a TCP connection ends because its endpoint went away.
type TerminationPolicy uint8

// The policies, as in the annotation fairway.net/close-connections.
const (
	// TerminateGone ends connections to endpoints that have left the Service: the pod or its node was deleted. An
	// endpoint that is only not ready keeps its connections.
	TerminateGone TerminationPolicy = iota
	// TerminateUnready ends connections to endpoints that stopped serving, for any reason.
	TerminateUnready
	// TerminateNever ends no connection.
	TerminateNever
	terminationCount
)

var terminationNames = [terminationCount]string{"gone", "unready", "never"}

// String returns "gone", "unready" or "never".
func (p TerminationPolicy) String() string { return terminationNames[p] }

// ParseTerminationPolicy is the inverse of String.
func ParseTerminationPolicy(s string) (TerminationPolicy, error) {
	if i := slices.Index(terminationNames[:], s); i >= 0 {
		return TerminationPolicy(i), nil
	}
	return TerminateGone, fmt.Errorf("invalid value %q (allowed: gone, unready, never)", s)
}

// KeepsFlows reports whether f has FlowEndpoints. f may be nil.
func (f *Frontend) KeepsFlows() bool {
	return f != nil && len(f.Retained)+len(f.Internal.Endpoints)+len(f.External.Endpoints) > 0
}

// FlowEndpoints returns the endpoints that keep their existing flows, sorted: the routes' endpoints, which also get new
// flows, and the Retained endpoints. The caller owns the list. f may be nil.
func (f *Frontend) FlowEndpoints() []netip.AddrPort {
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

// KeepsFlowsTo reports whether a is one of the FlowEndpoints.
func (f *Frontend) KeepsFlowsTo(a netip.AddrPort) bool {
	if _, ok := slices.BinarySearchFunc(f.Retained, a, netip.AddrPort.Compare); ok {
		return true
	}
	return f.RoutesTo(a)
}

// RoutesTo reports whether a gets new flows.
func (f *Frontend) RoutesTo(a netip.AddrPort) bool { return f.Internal.has(a) || f.External.has(a) }

// has reports whether a is one of the route's endpoints.
func (r *Route) has(a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(r.Endpoints, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// ServesNodePorts reports whether an address of this node serves NodePorts.
func (s Settings) ServesNodePorts(a netip.Addr) bool {
	return !a.IsLoopback() && slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
}

// SameNodePorts reports whether s and o serve NodePorts on the same addresses.
func (s Settings) SameNodePorts(o Settings) bool { return samePrefixes(s.NodePorts, o.NodePorts) }
