package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// A clusterState is what makePlan decides from: the nodes as the API server has them, and what
// this machine and its configuration say without asking any node.
type clusterState struct {
	self     Peer
	peers    []Peer
	departed []Peer // their objects have gone a moment ago; disjoint from peers
	networks []onLink
	gateways []netip.Addr // of this machine's default routes

	clusterCIDRs []netip.Prefix // what all podCIDRs are taken from; none: not configured
	serviceCIDRs []netip.Prefix
	apiServers   []netip.Addr

	way Way
	// receive keeps the VXLAN tunnel for what peers still send, and decrypt WireGuard, where way is
	// another one.
	receive, decrypt bool
	// retained are the ways of destinations that may stay for now, after a change of way.
	retained map[netip.Prefix]Way
	// enforce drops what is not encrypted, where way is WayWireGuard.
	enforce bool
	key     Key // this node's public one; none: not known yet

	allowedIPs map[Key][]netip.Prefix // what keys stand for in the kernel

	announced announced // what routers lead to
	// egress: pods may leave the cluster by other nodes. Where routers carry pods' packets, those go there by the tunnel.
	egress bool
}

// tunnels reports whether packets to peers may take VXLAN.
func (c *clusterState) tunnels() bool { return c.way == WayVXLAN || c.way == WayAuto }

// tunnelsEgress reports whether VXLAN is for packets to egress gateways alone: routers lead to pods, and send on by
// themselves what is for anybody else.
func (c *clusterState) tunnelsEgress() bool { return c.way == WayBGP && c.egress }

// wayTo decides how a podCIDR of a peer is reached. encrypted: WireGuard can.
func (c *clusterState) wayTo(cidr netip.Prefix, neighbour, encrypted bool) Way {
	want := c.way
	switch {
	case neighbour && (want == WayAuto || want == WayBGP):
		want = WayRoutes
	case want == WayAuto:
		want = WayVXLAN
	}
	// A peer that has not changed yet takes packets by the way that it had, plain ones in any. By BGP it
	// is reached when it has said so itself, or before by the way that it had.
	byRouters, itself := c.announced.to(cidr)
	switch kept := c.retained[cidr]; {
	case kept == WayRoutes && neighbour, kept == WayVXLAN && want == WayWireGuard, kept == WayWireGuard && encrypted:
		return kept
	case kept == WayRoutes && len(byRouters) > 0:
		return WayBGP
	case kept == WayVXLAN && want == WayBGP && !itself:
		return kept
	}
	return want
}

// seeingPods are the addresses of a peer that pods' packets reach with the pods' own
// addresses. Answers to others would leave by the tunnel where the packets did not come from it.
func (c clusterState) seeingPods(peer Peer) []netip.Addr {
	if c.way == WayVXLAN || c.way == WayWireGuard {
		return nil
	}
	return c.neighbours(peer)
}

// widest4 and widest6 are the shortest prefixes that a node's podCIDR may have where the
// cluster CIDR is not configured: 65,536 addresses, and a site's (RFC 6177).
const (
	widest4 = 16
	widest6 = 48
)

// podCIDRs decides which podCIDRs of which nodes become routes. A kubelet that registers its
// own node names them itself, so they are only as right as the node is honest: a route to
// the API server's address, or to a part of another node's podCIDR, would lead these packets
// to that node.
//
// Whoever comes first keeps its range, so accept is called for the oldest node first.
type podCIDRs struct {
	clusterState
	fixed    []fixedAddr    // sorted
	accepted []accepted     // disjoint
	sorted   []int32        // of accepted, by podCIDR
	order    map[string]int // of nodes by age, from 1
	all      *podCIDRs      // what is accepted in the end, for inPods; nil: nobody asked
}

// A fixedAddr is an address that a podCIDR of another node must not contain.
type fixedAddr struct {
	addr netip.Addr
	what string // such as "the address of node a"
	// order is the node's by age, if it counts only for podCIDRs of younger nodes; 0: for all.
	order int
}

const thisNodes = "this node's address"

func contains(f fixedAddr) string {
	return fmt.Sprintf("it contains %s %s [choose a cluster CIDR apart from the nodes' network]", f.what, f.addr)
}

type accepted struct {
	cidr netip.Prefix
	node string
}

// newPodCIDRs returns the decision for a cluster in which no podCIDR is accepted yet.
func newPodCIDRs(c clusterState) *podCIDRs {
	p := &podCIDRs{clusterState: c}
	add := func(what string, addrs []netip.Addr) {
		for _, addr := range addrs {
			p.fixed = append(p.fixed, fixedAddr{addr: addr, what: what})
		}
	}
	add(thisNodes, c.self.Addrs)
	// What the API server's EndpointSlice says inside the cluster CIDR counts for nothing: who
	// may write it could take podCIDRs from nodes.
	add("the API server's address", slices.DeleteFunc(slices.Clone(c.apiServers), c.ofPods))
	add("the address of this node's gateway", c.gateways)
	add("the address of a router:", c.announced.routers())
	for _, peer := range c.peers {
		add("the address of node "+peer.Name+":", c.neighbours(peer))
	}
	p.addTunnelEnds()
	slices.SortStableFunc(p.fixed, func(a, b fixedAddr) int { return a.addr.Compare(b.addr) })
	return p
}

// ofPods reports whether an address is inside the cluster CIDR, as far as it is configured.
func (c clusterState) ofPods(a netip.Addr) bool {
	return slices.ContainsFunc(c.clusterCIDRs, func(pods netip.Prefix) bool { return pods.Contains(a) })
}

// neighbours are the addresses of a peer that this machine reaches without a gateway.
// Others count for nothing: a node may claim any address, and no route can use them.
func (c clusterState) neighbours(peer Peer) []netip.Addr {
	var out []netip.Addr
	for _, addr := range peer.Addrs {
		if linkTo(addr, c.networks) != 0 {
			out = append(out, addr)
		}
	}
	return out
}

// byAge returns all nodes, the oldest first. What the API server says of this node
// counts for it too, so that all nodes decide alike.
func (c clusterState) byAge() []Peer {
	all := []Peer{c.self}
	for _, peer := range c.peers {
		if peer.Name != c.self.Name {
			all = append(all, peer)
		}
	}
	slices.SortStableFunc(all, func(a, b Peer) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// accept takes a podCIDR of a node, or returns why it is refused. For this node's own only
// counts what breaks the node; whether it is inside the cluster CIDR, its operator decides.
func (p *podCIDRs) accept(node Peer, cidr netip.Prefix) (refused string) {
	switch {
	case !cidr.IsValid():
		return "it is no prefix"
	case cidr.Bits() == 0:
		return "it contains every address"
	}
	cidr = cidr.Masked()
	why := ""
	if node.Name != p.self.Name {
		why = cmp.Or(p.containsFixed(node, cidr), p.outOfBounds(cidr))
	} else if i := slices.IndexFunc(p.self.Addrs, cidr.Contains); i >= 0 {
		why = contains(fixedAddr{addr: p.self.Addrs[i], what: thisNodes})
	}
	if why != "" {
		return why
	}
	i, other := p.overlapping(cidr)
	switch {
	case other == nil:
		p.sorted = slices.Insert(p.sorted, i, int32(len(p.accepted)))
		p.accepted = append(p.accepted, accepted{cidr, node.Name})
		return ""
	case other.node == node.Name:
		return fmt.Sprintf("it overlaps %s of the same node", other.cidr)
	}
	return fmt.Sprintf("it overlaps %s of node %s, which is older [podCIDRs of nodes have to be disjoint]", other.cidr, other.node)
}

// outOfBounds says why a podCIDR of another node cannot be one, whatever the other nodes have.
func (p *podCIDRs) outOfBounds(cidr netip.Prefix) string {
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
	for _, services := range p.serviceCIDRs {
		if services.Overlaps(cidr) {
			return fmt.Sprintf("it overlaps the ServiceCIDR %s", services)
		}
	}
	known := slices.DeleteFunc(slices.Clone(p.clusterCIDRs), func(c netip.Prefix) bool { return c.Addr().Is4() != addr.Is4() })
	inside := func(c netip.Prefix) bool { return c.Bits() <= cidr.Bits() && c.Contains(addr) }
	private := func(c netip.Prefix) bool { return c.Addr().Is4() == addr.Is4() && c.Addr().IsPrivate() }
	switch {
	case slices.ContainsFunc(known, inside):
		return ""
	case len(known) > 0:
		return fmt.Sprintf("it is not inside the cluster CIDR %s [add its range to --cluster-cidr if it is right]", joinPrefixes(known))
	case cidr.Bits() < widest:
		return fmt.Sprintf("it is wider than /%d [set --cluster-cidr if it is right]", widest)
	case !addr.IsPrivate() && slices.ContainsFunc(p.self.PodCIDRs, private):
		return "it is not private, as this node's is [set --cluster-cidr if it is right]"
	}
	return ""
}

// containsFixed says which fixed address is in a podCIDR of a node.
func (p *podCIDRs) containsFixed(node Peer, cidr netip.Prefix) string {
	i, _ := slices.BinarySearchFunc(p.fixed, cidr.Addr(), func(f fixedAddr, a netip.Addr) int { return f.addr.Compare(a) })
	for _, f := range p.fixed[i:] {
		if !cidr.Contains(f.addr) {
			break
		}
		if order, here := p.order[node.Name]; f.order == 0 || !here || f.order < order {
			return contains(f)
		}
	}
	return ""
}

// addTunnelEnds adds the addresses that tunnels and routers lead to. A node may claim any: it takes no
// podCIDR from an older node with one, nor from itself, and none inside the cluster CIDR from any.
func (p *podCIDRs) addTunnelEnds() {
	if !p.tunnels() && p.way != WayWireGuard && p.way != WayBGP {
		return
	}
	p.order = map[string]int{}
	for i, peer := range p.byAge() {
		p.order[peer.Name] = i + 1
		for _, addr := range peer.Addrs {
			if peer.Name != p.self.Name && linkTo(addr, p.networks) == 0 && !p.ofPods(addr) {
				p.fixed = append(p.fixed, fixedAddr{addr, "the address of node " + peer.Name + ":", i + 1})
			}
		}
	}
}

// inPods reports whether an address that a node claims is in another node's podCIDR: of an older node, and inside
// the cluster CIDR of any. Nothing may lead to the node by way of it.
func (p *podCIDRs) inPods(node string, addr netip.Addr) bool {
	decided := p
	if p.ofPods(addr) {
		if p.all == nil {
			p.all = newPodCIDRs(p.clusterState)
			for _, peer := range p.byAge() {
				for _, cidr := range peer.PodCIDRs {
					_ = p.all.accept(peer, cidr)
				}
			}
		}
		decided = p.all
	}
	_, other := decided.overlapping(netip.PrefixFrom(addr, addr.BitLen()))
	return other != nil && other.node != node
}

// overlapping returns an accepted podCIDR that cidr overlaps, or nil and where cidr belongs.
// Those accepted are disjoint, so that it is enough to look at the neighbours.
func (p *podCIDRs) overlapping(cidr netip.Prefix) (int, *accepted) {
	i, _ := slices.BinarySearchFunc(p.sorted, cidr, func(a int32, c netip.Prefix) int { return comparePrefixes(p.accepted[a].cidr, c) })
	for _, a := range p.sorted[max(0, i-1):min(len(p.sorted), i+1)] {
		if p.accepted[a].cidr.Overlaps(cidr) {
			return i, &p.accepted[a]
		}
	}
	return i, nil
}
