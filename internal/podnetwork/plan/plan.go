package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// A Route leads to a peer's pods, or makes a destination unreachable. The node's own podCIDR is unreachable except for
// routes to its pods. Otherwise a packet to a deleted pod would leave by the default route, and come back from a router
// that knows where pods live.
type Route struct {
	Dst  netip.Prefix
	Via  netip.Addr // invalid: unreachable
	Link int        // of via; 0 for unreachable
	// By is the way to Via: WayRoutes for a neighbour, WayBGP for a router, or a tunnel. The Via of a tunnel is in no
	// network of the link. Empty: unreachable.
	By Way
	// Also are further routers, without gaps. The kernel sends each flow to one of all routers.
	Also [MaxRouters - 1]Hop
}

// A Hop is a router and the link to it.
type Hop struct {
	Via  netip.Addr
	Link int
}

// MaxRouters is the number of routers that may lead to a podCIDR. A speaker has as many sessions.
const MaxRouters = 8

// Hops returns all next hops.
func (r Route) Hops() []Hop {
	all := []Hop{{r.Via, r.Link}}
	for _, h := range r.Also {
		if h.Via.IsValid() {
			all = append(all, h)
		}
	}
	return all
}

// RouteBy returns a route to routers, or an unreachable route if there are none.
func RouteBy(dst netip.Prefix, by Way, all []Hop) Route {
	r := Route{Dst: dst}
	if len(all) > 0 {
		r.Via, r.Link, r.By = all[0].Via, all[0].Link, by
		copy(r.Also[:], all[1:])
	}
	return r
}

// An OnLink is a network that is reached without a gateway.
type OnLink struct {
	Prefix netip.Prefix
	Link   int
}

// A Plan is the wanted state of the kernel, together with the facts that Lookup needs.
type Plan struct {
	PodCIDRs  []netip.Prefix         // the node's podCIDRs
	Pods      []netip.Prefix         // every acceptable podCIDR
	Nodes     []netip.Addr           // addresses of this node, and of the nodes that see pods' own addresses
	Routes    map[netip.Prefix]Route // by destination
	Tunnel    *Tunnel                // nil: there is none
	WireGuard *WireGuard             // nil: there is none
	Egress    *Egress                // nil: no pod has an egress address, or the pods are not known yet
	Problems  []Problem
	// Inside are the destinations that always see the pods' own addresses. Masqueraded are the podCIDRs of this node
	// that get the node's address, except to NonMasquerade.
	Inside, Masqueraded, NonMasquerade []netip.Prefix

	Self    []netip.Addr       // addresses of this node
	OwnPods map[netip.Addr]int // the pods of this node, and their links
	Foreign []Route            // other programs' routes of the main table
	nodeOf  map[netip.Prefix]string
}

// multicast is never masqueraded. No gateway forwards link-local addresses, so no egress address counts there.
var (
	multicast = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}
	linkLocal = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}
)

// EgressInside returns the destinations for which no egress address counts.
func (p *Plan) EgressInside() []netip.Prefix { return slices.Concat(p.Inside, linkLocal) }

// Make decides. The same State gives the same Plan: the order of the nodes does not matter.
func Make(c State) *Plan {
	p := &Plan{
		Routes: map[netip.Prefix]Route{}, Nodes: slices.Clone(c.Self.Addrs), Tunnel: newTunnel(c), WireGuard: newWireGuard(c),
		NonMasquerade: c.NonMasqueradeCIDRs, Self: c.Self.Addrs, OwnPods: c.OwnPods, Foreign: c.Foreign, nodeOf: map[netip.Prefix]string{},
	}
	decision := newPodCIDRs(c)
	for _, node := range c.byAge() {
		if node.Name != c.Self.Name {
			p.Nodes = append(p.Nodes, c.seeingPods(node)...)
			p.Tunnel.accept(node, decision)
			p.WireGuard.accept(node, decision)
		}
		for _, cidr := range node.PodCIDRs {
			why := decision.accept(node, cidr)
			cidr = cidr.Masked()
			switch {
			case why != "":
				p.problemf(node.Name, ReasonPodCIDR, "podCIDR %s of node %s is not used: %s", cidr, node.Name, why)
			case node.Name == c.Self.Name:
				p.PodCIDRs = append(p.PodCIDRs, cidr)
				p.Routes[cidr] = Route{Dst: cidr}
				p.Tunnel.addOwn(cidr)
				p.WireGuard.addOwn(cidr)
			default:
				p.addPeer(node, cidr, &c)
			}
		}
	}
	p.addDeparted(decision)
	p.Pods = append(p.Pods, p.PodCIDRs...)
	p.Inside = slices.Concat(p.Pods, c.ClusterCIDRs, multicast, hosts(p.Nodes))
	p.Masqueraded = c.masqueraded(p.PodCIDRs)
	return p
}

// masqueraded returns the podCIDRs of this node that get the node's address outside of the cluster.
func (c *State) masqueraded(own []netip.Prefix) (some []netip.Prefix) {
	for _, cidr := range own {
		exempt := func(e netip.Prefix) bool { return e.Bits() == 0 && e.Addr().Is4() == cidr.Addr().Is4() }
		if c.Masquerade && !slices.ContainsFunc(c.NonMasqueradeCIDRs, exempt) {
			some = append(some, cidr)
		}
	}
	return some
}

func hosts(addrs []netip.Addr) (all []netip.Prefix) {
	for _, addr := range addrs {
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return all
}

// addPeer plans the route to an accepted podCIDR of a peer, or adds a problem.
func (p *Plan) addPeer(peer Peer, cidr netip.Prefix, c *State) {
	p.Pods = append(p.Pods, cidr)
	p.nodeOf[cidr] = peer.Name
	p.Tunnel.allow(cidr)
	p.WireGuard.allow(peer, cidr, c.Enforce)
	direct, neighbour := neighbourRoute(peer, cidr, c.Networks)
	switch way := c.wayTo(cidr, neighbour, p.WireGuard != nil && p.WireGuard.why(peer, cidr) == ""); {
	case way == WayWireGuard:
		why := p.WireGuard.why(peer, cidr)
		if why == "" {
			p.Routes[cidr] = Route{Dst: cidr, Via: TunnelGateway(peer.Name, cidr), By: WayWireGuard}
			return
		}
		p.Routes[cidr] = Route{Dst: cidr} // without it the packets would leave by the default route
		p.problemf(peer.Name, ReasonNoKey, "%s: its pods in %s are not reachable from here", why, cidr)
	case way == WayVXLAN:
		if why := p.Tunnel.add(peer, cidr); why != "" {
			p.problemf(peer.Name, ReasonUnreachable, "%s: its pods in %s are not reachable from here", why, cidr)
			return
		}
		p.Routes[cidr] = Route{Dst: cidr, Via: TunnelGateway(peer.Name, cidr), By: WayVXLAN}
	case way == WayBGP:
		if c.Egress && p.Tunnel != nil { // also for a while after a change from BGP to another way
			_ = p.Tunnel.add(peer, cidr) // if it fails, only the node's use as an egress gateway is lost
		}
		hops, _ := c.Announced.To(cidr)
		p.Routes[cidr] = RouteBy(cidr, WayBGP, hops) // without hops it is unreachable, and no packet leaves by the default route
		if len(hops) == 0 {
			p.problemf(peer.Name, ReasonNotAnnounced, "no router announces a way to the pods of node %s in %s: they are not reachable from here [fairway speaker: sessions of BGPPeers, what the routers export to nodes]", peer.Name, cidr)
		}
	case neighbour:
		p.Routes[cidr] = direct
	case !direct.Via.IsValid():
		p.problemf(peer.Name, ReasonUnreachable, "node %s has podCIDR %s but no usable InternalIP of that family: its pods are not reachable from here", peer.Name, cidr)
	default:
		p.problemf(peer.Name, ReasonUnreachable, "node %s (%s) is behind a router: its pods in %s are not reachable from here (pod network \"routes\" needs all nodes on one link; --pod-network auto reaches others by a tunnel, bgp by routers that carry the pods' routes)", peer.Name, direct.Via, cidr)
	}
}

// neighbourRoute returns the plain route to a podCIDR of a peer. neighbour says that the peer is in a network of this
// machine.
func neighbourRoute(peer Peer, cidr netip.Prefix, networks []OnLink) (r Route, neighbour bool) {
	r = Route{Dst: cidr, By: WayRoutes}
	for _, addr := range peer.Addrs {
		if addr.Is4() != cidr.Addr().Is4() || cidr.Contains(addr) {
			continue
		}
		r.Via = addr
		if r.Link = LinkTo(addr, networks); r.Link != 0 {
			return r, true
		}
	}
	return r, false
}

// Bind sets the links of the routes by tunnels. Without a link there is no route, or an unreachable one by WireGuard,
// so that no packet leaves unencrypted.
func (p *Plan) Bind(links map[Way]int) {
	for dst, r := range p.Routes {
		switch link := links[r.By]; {
		case r.By == "" || r.By == WayRoutes || r.By == WayBGP:
		case link != 0:
			r.Link = link
			p.Routes[dst] = r
		case r.By == WayWireGuard:
			p.Routes[dst] = Route{Dst: dst}
		default:
			delete(p.Routes, dst)
		}
	}
}

func (p *Plan) problemf(node, reason, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{node, reason, fmt.Sprintf(format, args...)})
}

// LinkTo returns the link of the most specific network that contains addr, or 0.
func LinkTo(addr netip.Addr, networks []OnLink) int {
	link, bits := 0, -1
	for _, network := range networks {
		if network.Prefix.Bits() > bits && network.Prefix.Contains(addr) {
			link, bits = network.Link, network.Prefix.Bits()
		}
	}
	return link
}

func CompareHops(a, b Hop) int { return cmp.Or(a.Via.Compare(b.Via), cmp.Compare(a.Link, b.Link)) }
