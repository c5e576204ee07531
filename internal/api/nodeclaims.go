package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// NodeClaims is what a Node object says of its node. The kubelet writes its addresses at any time, and its podCIDRs
// when it joins.
type NodeClaims struct {
	Name     string
	Created  time.Time
	Addrs    []netip.Addr // status.addresses
	PodCIDRs []netip.Prefix
}

// MaxNodeAddrs is the number of a node's addresses that count. A kubelet may write any number into its Node, and other
// nodes read them.
const MaxNodeAddrs = 64

// ReasonNodeClaim is the reason of all problems of AcceptNodes.
const ReasonNodeClaim = "ClaimRefused"

// AcceptedNodes are the claims of all nodes that count. It is immutable. A nil AcceptedNodes accepts nothing.
//
//	status.addresses ── 64 of a node, no ServiceCIDR's, no pod's ──▶ Addrs ── the oldest node's ──▶ Owned
//	spec.podCIDRs    ── disjoint, inside the cluster CIDR … ───────▶ PodCIDRs, HasPod
type AcceptedNodes struct {
	podCIDRs *PodCIDRs
	nodes    map[string]*acceptedNode
	owners   map[netip.Addr]string // the oldest node that claims each accepted address
	Problems []NodeProblem
}

type acceptedNode struct {
	addrs    []netip.Addr
	podCIDRs []netip.Prefix
}

// A NodeProblem is a refused claim of a node.
type NodeProblem struct {
	Node string
	Problem
}

// AcceptNodes decides which claims of the nodes count. The order of the nodes does not matter, their age does: no
// kubelet can change the podCIDRs of a Node that exists, so the older node has them first.
func AcceptNodes(nodes []NodeClaims, f ClusterFacts) *AcceptedNodes {
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b NodeClaims) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	for i := range nodes {
		nodes[i].Addrs = nodes[i].Addrs[:min(len(nodes[i].Addrs), MaxNodeAddrs)]
	}
	if mostInside(nodes, f.ClusterCIDRs) {
		f.ClusterCIDRs = nil
	}
	f.Fixed, f.Order = slices.Clone(f.Fixed), map[string]int{}
	for i, n := range nodes {
		f.Order[n.Name] = i + 2 // its own addresses count too
		for _, a := range n.Addrs {
			if !within(a, f.ClusterCIDRs) {
				f.Fixed = append(f.Fixed, FixedAddr{a, "the address of node " + n.Name + ":", i + 1})
			}
		}
	}
	accepted := &AcceptedNodes{podCIDRs: NewPodCIDRs(f), nodes: make(map[string]*acceptedNode, len(nodes)), owners: map[netip.Addr]string{}}
	for _, n := range nodes {
		accepted.addPodCIDRs(n)
	}
	for _, n := range nodes {
		accepted.addAddrs(n)
	}
	return accepted
}

// mostInside reports whether most nodes have their own address inside the cluster CIDRs. The cluster CIDRs then say
// nothing about pods, for example with a CNI plugin that gives pods addresses of the nodes' network.
func mostInside(nodes []NodeClaims, clusterCIDRs []netip.Prefix) bool {
	inside, all := 0, 0
	for _, n := range nodes {
		if len(n.Addrs) == 0 {
			continue
		}
		if all++; within(n.Addrs[0], clusterCIDRs) {
			inside++
		}
	}
	return 2*inside > all
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (x *AcceptedNodes) addPodCIDRs(n NodeClaims) {
	node := &acceptedNode{}
	x.nodes[n.Name] = node
	for _, cidr := range n.PodCIDRs {
		if why := x.podCIDRs.Accept(n.Name, cidr); why != "" {
			x.problem(n.Name, "podCIDR %s does not count: %s", cidr, why)
			continue
		}
		node.podCIDRs = append(node.podCIDRs, cidr.Masked())
	}
}

func (x *AcceptedNodes) addAddrs(n NodeClaims) {
	node := x.nodes[n.Name]
	for _, a := range n.Addrs {
		if why := x.refuses(a); why != "" {
			x.problem(n.Name, "address %s does not count: %s [correct the kubelet's --node-ip, or look for who took the node over]", a, why)
			continue
		}
		node.addrs = append(node.addrs, a)
		if _, taken := x.owners[a]; !taken {
			x.owners[a] = n.Name
		}
	}
}

// refuses returns the reason why an address can be no node's. Empty: it can.
func (x *AcceptedNodes) refuses(a netip.Addr) string {
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		return "it is no host's"
	}
	if within(a, x.podCIDRs.ServiceCIDRs) {
		return "it is in a ServiceCIDR"
	}
	if other := x.podCIDRs.NodeOf(a); other != "" {
		return "it is in the podCIDR of node " + other
	}
	return ""
}

func (x *AcceptedNodes) problem(node, format string, args ...any) {
	x.Problems = append(x.Problems, NodeProblem{node, Problem{ReasonNodeClaim, fmt.Sprintf(format, args...)}})
}

func (x *AcceptedNodes) node(name string) acceptedNode {
	if x == nil || x.nodes[name] == nil {
		return acceptedNode{}
	}
	return *x.nodes[name]
}

// Addrs returns the accepted ones of a node's addresses. Another node may claim the same addresses. So use Addrs only
// where a claim gives nothing away, for example for packets to the node: an older node could otherwise silence a
// younger one.
func (x *AcceptedNodes) Addrs(node string) []netip.Addr { return x.node(node).addrs }

// Owned returns the accepted addresses of a node that no older node claims. Use it where an address grants something.
func (x *AcceptedNodes) Owned(node string) (all []netip.Addr) {
	for _, a := range x.node(node).addrs {
		if x.owners[a] == node {
			all = append(all, a)
		}
	}
	return all
}

// PodCIDRs returns the accepted podCIDRs of a node.
func (x *AcceptedNodes) PodCIDRs(node string) []netip.Prefix { return x.node(node).podCIDRs }

// HasPod reports whether a pod of the node may have the address.
func (x *AcceptedNodes) HasPod(node string, a netip.Addr) bool { return within(a, x.PodCIDRs(node)) }
