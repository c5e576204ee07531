package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A State is the input of Make: the nodes in the API server, and the facts of this machine and its configuration, which
// no node can change.
type State struct {
	Self     Peer
	Peers    []Peer
	Departed []Peer // nodes whose objects have gone in the last minute; disjoint from Peers
	Networks []OnLink
	Gateways []netip.Addr // of this machine's default routes

	ClusterCIDRs []netip.Prefix // the ranges of all podCIDRs; empty: not configured
	ServiceCIDRs []netip.Prefix
	APIServers   []netip.Addr

	// Masquerade gives pods the node's address outside of the cluster, except to NonMasqueradeCIDRs.
	Masquerade         bool
	NonMasqueradeCIDRs []netip.Prefix

	// OwnPods and Foreign are for Lookup: the pods of this node with their links, and other programs' routes.
	OwnPods map[netip.Addr]int
	Foreign []Route

	Way Way
	// Receive keeps the VXLAN tunnel, and Decrypt WireGuard, for packets that peers still send after a change to
	// another Way.
	Receive, Decrypt bool
	// Retained are the previous ways to destinations, for some minutes after a change of Way.
	Retained map[netip.Prefix]Way
	// Enforce drops unencrypted packets if Way is WayWireGuard.
	Enforce bool
	Key     Key // the public key of this node; zero: not known yet

	AllowedIPs map[Key][]netip.Prefix // allowed addresses of each key in the kernel

	Announced Announced // the routers' announcements
	// Egress: pods may leave the cluster by other nodes. If routers carry pods' packets, packets to other nodes' egress
	// addresses take the tunnel.
	Egress bool
}

// tunnels reports whether packets to peers may take VXLAN.
func (c *State) tunnels() bool { return c.Way == WayVXLAN || c.Way == WayAuto }

// tunnelsEgress reports whether VXLAN carries only packets to egress gateways. By BGP the routers carry packets to
// pods, but would forward all other packets themselves.
func (c *State) tunnelsEgress() bool { return c.Way == WayBGP && c.Egress }

// wayTo returns the way to a podCIDR of a peer. encrypted says that WireGuard reaches it.
func (c *State) wayTo(cidr netip.Prefix, neighbour, encrypted bool) Way {
	want := c.Way
	switch {
	case neighbour && (want == WayAuto || want == WayBGP):
		want = WayRoutes
	case want == WayAuto:
		want = WayVXLAN
	}
	// A peer that has not changed yet takes packets by its previous way, and plain packets always. By BGP a podCIDR is
	// reached once its node has announced it. Until then the previous way stays.
	byRouters, itself := c.Announced.To(cidr)
	switch kept := c.Retained[cidr]; {
	case kept == WayRoutes && neighbour, kept == WayVXLAN && want == WayWireGuard, kept == WayWireGuard && encrypted:
		return kept
	case kept == WayRoutes && len(byRouters) > 0:
		return WayBGP
	case kept == WayVXLAN && want == WayBGP && !itself:
		return kept
	}
	return want
}

// seeingPods returns the addresses of a peer that see the pods' own addresses. With a tunnel the list is empty: answers
// would take the tunnel although the packets came without it.
func (c State) seeingPods(peer Peer) []netip.Addr {
	if c.Way == WayVXLAN || c.Way == WayWireGuard {
		return nil
	}
	return c.neighbours(peer)
}

// widest4 and widest6 are the shortest prefixes of podCIDRs if no cluster CIDR is configured: 65,536 addresses, and a
// site (RFC 6177).
const (
	widest4 = 16
	widest6 = 48
)

// podCIDRs decides which podCIDRs become routes. A kubelet names the podCIDRs of its own node, so they are only as
// right as the node is honest. A route to the API server's address, or to a part of another node's podCIDR, would lead
// packets to a hostile node.
//
// The first node keeps its range, so accept is called for the oldest node first.
type podCIDRs struct {
	State
	fixed    []fixedAddr    // sorted
	accepted []accepted     // disjoint
	sorted   []int32        // of accepted, by podCIDR
	order    map[string]int // of nodes by age, from 1
	all      *podCIDRs      // the final decision about all nodes, for inPods; nil: not needed yet
}

// A fixedAddr is an address that no podCIDR of another node may contain.
type fixedAddr struct {
	addr netip.Addr
	what string // such as "the address of node a"
	// order is the age rank of the address' node if the address counts only against younger nodes. 0: it counts against
	// all.
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

// newPodCIDRs returns a decision without any accepted podCIDR.
func newPodCIDRs(c State) *podCIDRs {
	p := &podCIDRs{State: c}
	add := func(what string, addrs []netip.Addr) {
		for _, addr := range addrs {
			p.fixed = append(p.fixed, fixedAddr{addr: addr, what: what})
		}
	}
	add(thisNodes, c.Self.Addrs)
	// Addresses of the API server inside the cluster CIDR do not count. Otherwise the writers of its EndpointSlice
	// could take podCIDRs from nodes.
	add("the API server's address", slices.DeleteFunc(slices.Clone(c.APIServers), c.ofPods))
	add("the address of this node's gateway", c.Gateways)
	add("the address of a router:", c.Announced.Routers())
	for _, peer := range c.Peers {
		add("the address of node "+peer.Name+":", c.neighbours(peer))
	}
	p.addTunnelEnds()
	slices.SortStableFunc(p.fixed, func(a, b fixedAddr) int { return a.addr.Compare(b.addr) })
	return p
}

// ofPods reports whether an address is inside the configured cluster CIDR.
func (c State) ofPods(a netip.Addr) bool {
	return slices.ContainsFunc(c.ClusterCIDRs, func(pods netip.Prefix) bool { return pods.Contains(a) })
}

// neighbours returns the addresses of a peer that this machine reaches without a gateway. Other addresses do not count,
// because a node may claim any address and no route uses them.
func (c State) neighbours(peer Peer) []netip.Addr {
	var out []netip.Addr
	for _, addr := range peer.Addrs {
		if LinkTo(addr, c.Networks) != 0 {
			out = append(out, addr)
		}
	}
	return out
}

// byAge returns all nodes, the oldest first. This node counts by its Node object too, so that all nodes decide alike.
func (c State) byAge() []Peer {
	all := []Peer{c.Self}
	for _, peer := range c.Peers {
		if peer.Name != c.Self.Name {
			all = append(all, peer)
		}
	}
	slices.SortStableFunc(all, func(a, b Peer) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// accept takes a podCIDR of a node, or returns the reason to refuse it. A podCIDR of this node is refused only if it
// would break the node. The administrator decides whether it is inside the cluster CIDR.
func (p *podCIDRs) accept(node Peer, cidr netip.Prefix) (refused string) {
	switch {
	case !cidr.IsValid():
		return "it is no prefix"
	case cidr.Bits() == 0:
		return "it contains every address"
	}
	cidr = cidr.Masked()
	why := ""
	if node.Name != p.Self.Name {
		why = cmp.Or(p.containsFixed(node, cidr), p.outOfBounds(cidr))
	} else if i := slices.IndexFunc(p.Self.Addrs, cidr.Contains); i >= 0 {
		why = contains(fixedAddr{addr: p.Self.Addrs[i], what: thisNodes})
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

// outOfBounds returns the reason why a range cannot be a podCIDR of another node. It does not look at other podCIDRs.
// Empty: the range can be one.
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

// addTunnelEnds adds the addresses to which tunnels and routers lead. A node may claim any address. So an address
// counts only against podCIDRs of younger nodes, and not at all inside the cluster CIDR.
func (p *podCIDRs) addTunnelEnds() {
	if !p.tunnels() && p.Way != WayWireGuard && p.Way != WayBGP {
		return
	}
	p.order = map[string]int{}
	for i, peer := range p.byAge() {
		p.order[peer.Name] = i + 1
		for _, addr := range peer.Addrs {
			if peer.Name != p.Self.Name && LinkTo(addr, p.Networks) == 0 && !p.ofPods(addr) {
				p.fixed = append(p.fixed, fixedAddr{addr, "the address of node " + peer.Name + ":", i + 1})
			}
		}
	}
}

// inPods reports whether an address that a node claims is in another node's podCIDR. Inside the cluster CIDR any other
// node counts, elsewhere only older nodes. No tunnel may lead to such an address.
func (p *podCIDRs) inPods(node string, addr netip.Addr) bool {
	decided := p
	if p.ofPods(addr) {
		if p.all == nil {
			p.all = newPodCIDRs(p.State)
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

// overlapping returns an accepted podCIDR that overlaps cidr, or nil and the index to insert cidr. Accepted podCIDRs
// are disjoint, so only the neighbours can overlap.
func (p *podCIDRs) overlapping(cidr netip.Prefix) (int, *accepted) {
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
