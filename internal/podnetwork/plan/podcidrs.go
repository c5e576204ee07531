package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
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

// podCIDRs decides which podCIDRs become routes (api.PodCIDRs), by the facts of this machine.
//
// The first node keeps its range, so accept is called for the oldest node first.
type podCIDRs struct {
	State
	*api.PodCIDRs
	all *podCIDRs // the final decision about all nodes, for inPods; nil: not needed yet
}

// newPodCIDRs returns a decision without any accepted podCIDR.
func newPodCIDRs(c State) *podCIDRs {
	f := api.ClusterFacts{ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs, Self: c.Self.claims()}
	add := func(what string, addrs []netip.Addr) {
		for _, addr := range addrs {
			f.Fixed = append(f.Fixed, api.FixedAddr{Addr: addr, What: what})
		}
	}
	add(api.ThisNodes, c.Self.Addrs)
	// Addresses of the API server inside the cluster CIDR do not count. Otherwise the writers of its EndpointSlice
	// could take podCIDRs from nodes.
	add("the API server's address", slices.DeleteFunc(slices.Clone(c.APIServers), c.ofPods))
	add("the address of this node's gateway", c.Gateways)
	add("the address of a router:", c.Announced.Routers())
	for _, peer := range c.Peers {
		add("the address of node "+peer.Name+":", c.neighbours(peer))
	}
	c.addTunnelEnds(&f)
	return &podCIDRs{State: c, PodCIDRs: api.NewPodCIDRs(f)}
}

// accept takes a podCIDR of a node, or returns the reason to refuse it.
func (p *podCIDRs) accept(node Peer, cidr netip.Prefix) (refused string) {
	return p.Accept(node.Name, cidr)
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

// addTunnelEnds adds the addresses to which tunnels and routers lead. A node may claim any address. So an address
// counts only against podCIDRs of younger nodes, and not at all inside the cluster CIDR.
func (c State) addTunnelEnds(f *api.ClusterFacts) {
	if !c.tunnels() && c.Way != WayWireGuard && c.Way != WayBGP {
		return
	}
	f.Order = map[string]int{}
	for i, peer := range c.byAge() {
		f.Order[peer.Name] = i + 1
		for _, addr := range peer.Addrs {
			if peer.Name != c.Self.Name && LinkTo(addr, c.Networks) == 0 && !c.ofPods(addr) {
				f.Fixed = append(f.Fixed, api.FixedAddr{Addr: addr, What: "the address of node " + peer.Name + ":", Order: i + 1})
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
	other := decided.NodeOf(addr)
	return other != "" && other != node
}
