package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// widest4 and widest6 are the shortest prefixes of podCIDRs if no cluster CIDR is configured: 65,536 addresses, and a
// site (RFC 6177).
const (
	widest4 = 16
	widest6 = 48
)

// ClusterFacts are facts that no node can change. PodCIDRs decides by them.
type ClusterFacts struct {
	ClusterCIDRs []netip.Prefix // the ranges of all podCIDRs; empty: not configured
	ServiceCIDRs []netip.Prefix
	// Self is the node that decides; its Name is empty if no node does. A podCIDR of Self is refused only if it would
	// break the node. The administrator decides whether it is inside the cluster CIDR.
	Self  NodeClaims
	Fixed []FixedAddr
	// Order is the age rank of nodes, from 1. It may be nil. A FixedAddr with an Order counts against all other nodes.
	Order map[string]int
}

// A FixedAddr is an address that no podCIDR of another node may contain.
type FixedAddr struct {
	Addr netip.Addr
	What string // such as "the address of node a:"
	// Order is the age rank of the address' node if the address counts only against younger nodes. 0: it counts against
	// all.
	Order int
}

func (f FixedAddr) isInside() string {
	return fmt.Sprintf("it contains %s %s [choose a cluster CIDR apart from the nodes' network]", f.What, f.Addr)
}

// PodCIDRs decides which podCIDRs count. A kubelet names the podCIDRs of its own node, so they are only as right as the
// node is honest. A route to the API server's address, or to a part of another node's podCIDR, would lead packets to a
// hostile node.
//
// The first node keeps its range, so call Accept for the oldest node first.
type PodCIDRs struct {
	ClusterFacts
	accepted []acceptedCIDR // disjoint
	sorted   []int32        // of accepted, by podCIDR
}

type acceptedCIDR struct {
	cidr netip.Prefix
	node string
}

// NewPodCIDRs returns a decision without any accepted podCIDR. It keeps the facts.
func NewPodCIDRs(f ClusterFacts) *PodCIDRs {
	f.Fixed = slices.Clone(f.Fixed)
	slices.SortStableFunc(f.Fixed, func(a, b FixedAddr) int { return a.Addr.Compare(b.Addr) })
	return &PodCIDRs{ClusterFacts: f}
}

// Accept takes a podCIDR of a node, or returns the reason to refuse it.
func (p *PodCIDRs) Accept(node string, cidr netip.Prefix) (refused string) {
	switch {
	case !cidr.IsValid():
		return "it is no prefix"
	case cidr.Bits() == 0:
		return "it contains every address"
	}
	cidr = cidr.Masked()
	why := ""
	if p.Self.Name == "" || node != p.Self.Name {
		why = cmp.Or(p.containsFixed(node, cidr), p.outOfBounds(cidr))
	} else if i := slices.IndexFunc(p.Self.Addrs, cidr.Contains); i >= 0 {
		why = FixedAddr{Addr: p.Self.Addrs[i], What: ThisNodes}.isInside()
	}
	if why != "" {
		return why
	}
	i, other := p.overlapping(cidr)
	switch {
	case other == nil:
		p.sorted = slices.Insert(p.sorted, i, int32(len(p.accepted)))
		p.accepted = append(p.accepted, acceptedCIDR{cidr, node})
		return ""
	case other.node == node:
		return fmt.Sprintf("it overlaps %s of the same node", other.cidr)
	}
	return fmt.Sprintf("it overlaps %s of node %s, which is older [podCIDRs of nodes have to be disjoint]", other.cidr, other.node)
}

// ThisNodes describes the FixedAddrs of the node that decides.
const ThisNodes = "this node's address"

// NodeOf returns the node whose accepted podCIDR contains an address. Empty: there is none.
func (p *PodCIDRs) NodeOf(a netip.Addr) string {
	if _, in := p.overlapping(netip.PrefixFrom(a, a.BitLen())); in != nil {
		return in.node
	}
	return ""
}

// outOfBounds returns the reason why a range cannot be a podCIDR of another node. It does not look at other podCIDRs.
// Empty: the range can be one.
func (p *PodCIDRs) outOfBounds(cidr netip.Prefix) string {
	addr, widest := cidr.Addr(), widest6
	if addr.Is4() {
		widest = widest4
	}
	if addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return "its addresses are no hosts' (loopback, link-local, multicast)"
	}
	if addr.BitLen()-cidr.Bits() < 2 {
		return "it has no room for pods"
	}
	for _, services := range p.ServiceCIDRs {
		if services.Overlaps(cidr) {
			return fmt.Sprintf("it overlaps the ServiceCIDR %s", services)
		}
	}
	known := slices.DeleteFunc(slices.Clone(p.ClusterCIDRs), func(c netip.Prefix) bool { return c.Addr().Is4() != addr.Is4() })
	inside := func(c netip.Prefix) bool { return c.Bits() <= cidr.Bits() && c.Contains(addr) }
	private := func(c netip.Prefix) bool { return c.Addr().Is4() == addr.Is4() && c.Addr().IsPrivate() }
	switch {
	case slices.ContainsFunc(known, inside):
		return ""
	case len(known) > 0:
		return fmt.Sprintf("it is not inside the cluster CIDR %s [add its range to --cluster-cidr if it is right]", JoinPrefixes(known))
	case cidr.Bits() < widest:
		return fmt.Sprintf("it is wider than /%d [set --cluster-cidr if it is right]", widest)
	case !addr.IsPrivate() && slices.ContainsFunc(p.Self.PodCIDRs, private):
		return "it is not private, as this node's is [set --cluster-cidr if it is right]"
	}
	return ""
}

// containsFixed names the fixed address in a podCIDR of a node. Empty: there is none.
func (p *PodCIDRs) containsFixed(node string, cidr netip.Prefix) string {
	i, _ := slices.BinarySearchFunc(p.Fixed, cidr.Addr(), func(f FixedAddr, a netip.Addr) int { return f.Addr.Compare(a) })
	for _, f := range p.Fixed[i:] {
		if !cidr.Contains(f.Addr) {
			break
		}
		if order, here := p.Order[node]; f.Order == 0 || !here || f.Order < order {
			return f.isInside()
		}
	}
	return ""
}

// overlapping returns an accepted podCIDR that overlaps cidr, or nil and the index to insert cidr. Accepted podCIDRs
// are disjoint, so only the neighbours can overlap.
func (p *PodCIDRs) overlapping(cidr netip.Prefix) (int, *acceptedCIDR) {
	i, _ := slices.BinarySearchFunc(p.sorted, cidr, func(a int32, c netip.Prefix) int { return p.accepted[a].cidr.Compare(c) })
	for _, a := range p.sorted[max(0, i-1):min(len(p.sorted), i+1)] {
		if p.accepted[a].cidr.Overlaps(cidr) {
			return i, &p.accepted[a]
		}
	}
	return i, nil
}

// JoinPrefixes returns prefixes as a text for people.
func JoinPrefixes(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
