package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A route is one of ours: to a peer's pods by way of the peer, or, for the
// node's own podCIDR, to nowhere. The latter answers for addresses without a
// pod: a packet to a pod that has gone would otherwise leave by the default
// route, and come back from a router that knows where pods live.
type route struct {
	dst  netip.Prefix
	via  netip.Addr // invalid: unreachable
	link int        // of via; 0 for unreachable
}

func (r route) kind() int {
	if r.via.IsValid() {
		return unix.RTN_UNICAST
	}
	return unix.RTN_UNREACHABLE
}

// onLink is a network that is reached without a gateway.
type onLink struct {
	prefix netip.Prefix
	link   int
}

// A plan is what the kernel ought to hold.
type plan struct {
	own      []netip.Prefix         // the node's podCIDRs
	pods     []netip.Prefix         // every acceptable podCIDR
	nodes    []netip.Addr           // every node's addresses
	routes   map[netip.Prefix]route // by destination
	problems []string               // one line for a person each
}

// makePlan decides. It is pure: the same nodes and networks give the same plan,
// whatever order the nodes come in.
func makePlan(self Peer, peers []Peer, networks []onLink) *plan {
	p := &plan{routes: map[netip.Prefix]route{}}
	peers = slices.Clone(peers)
	peers = slices.DeleteFunc(peers, func(peer Peer) bool { return peer.Name == self.Name })
	slices.SortStableFunc(peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })

	p.nodes = slices.Clone(self.Addrs)
	for _, peer := range peers {
		p.nodes = append(p.nodes, peer.Addrs...)
	}
	for _, cidr := range self.PodCIDRs {
		if why := p.refuse(cidr, self); why != "" {
			p.problemf("podCIDR %s of this node is not used: %s", cidr, why)
			continue
		}
		cidr = cidr.Masked()
		p.own = append(p.own, cidr)
		p.routes[cidr] = route{dst: cidr}
	}
	p.pods = slices.Clone(p.own)
	for _, peer := range peers {
		for _, cidr := range peer.PodCIDRs {
			p.addPeer(self, peer, cidr, networks)
		}
	}
	return p
}

// addPeer plans the route to one podCIDR of a peer, or adds a problem.
func (p *plan) addPeer(self, peer Peer, cidr netip.Prefix, networks []onLink) {
	why := p.refuse(cidr, self)
	cidr = cidr.Masked()
	if why == "" && slices.ContainsFunc(p.own, cidr.Overlaps) {
		why = "it overlaps this node's own (podCIDRs of nodes have to differ)"
	}
	if _, taken := p.routes[cidr]; why == "" && taken {
		why = "another node has the same (podCIDRs of nodes have to differ)"
	}
	if why != "" {
		p.problemf("podCIDR %s of node %s is not used: %s", cidr, peer.Name, why)
		return
	}
	p.pods = append(p.pods, cidr)
	r := route{dst: cidr}
	for _, addr := range peer.Addrs {
		if addr.Is4() != cidr.Addr().Is4() || cidr.Contains(addr) {
			continue
		}
		r.via = addr
		if r.link = linkTo(addr, networks); r.link != 0 {
			p.routes[cidr] = r
			return
		}
	}
	if !r.via.IsValid() {
		p.problemf("node %s has podCIDR %s but no usable InternalIP of that family: its pods are not reachable from here", peer.Name, cidr)
		return
	}
	p.problemf("node %s (%s) is behind a router: its pods in %s are not reachable from here (pod network \"routes\" needs all nodes on one link; otherwise let the routers carry the pods' routes)", peer.Name, r.via, cidr)
}

// refuse names the reason why a podCIDR would do harm. A Node object is only as
// right as its author: "0.0.0.0/0" must not swallow the default route.
func (p *plan) refuse(cidr netip.Prefix, self Peer) string {
	switch {
	case !cidr.IsValid():
		return "it is no prefix"
	case cidr.Bits() == 0:
		return "it contains every address"
	}
	for _, addr := range self.Addrs {
		if cidr.Contains(addr) {
			return fmt.Sprintf("it contains this node's address %s [choose a cluster CIDR apart from the nodes' network]", addr)
		}
	}
	return ""
}

func (p *plan) problemf(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// linkTo is the link of the most specific network that contains addr, or 0.
func linkTo(addr netip.Addr, networks []onLink) int {
	link, bits := 0, -1
	for _, network := range networks {
		if network.prefix.Bits() > bits && network.prefix.Contains(addr) {
			link, bits = network.link, network.prefix.Bits()
		}
	}
	return link
}
