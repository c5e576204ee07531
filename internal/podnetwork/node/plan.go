package node

import (
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
	// by is how via is reached: WayRoutes for a neighbour, WayBGP for a router, else a tunnel, where via is
	// in no network of the link; empty for unreachable.
	by Way
	// also are further routers, from the first on: the kernel sends each flow to one of all.
	also [maxRouters - 1]hop
}

// A hop is a router and the link to it.
type hop struct {
	via  netip.Addr
	link int
}

// maxRouters is how many routers may lead to a podCIDR: as many as a speaker has sessions.
const maxRouters = 8

// hops are all that a route leads to.
func (r route) hops() []hop {
	all := []hop{{r.via, r.link}}
	for _, h := range r.also {
		if h.via.IsValid() {
			all = append(all, h)
		}
	}
	return all
}

// byHops is a route to routers, or an unreachable one where there is none.
func byHops(dst netip.Prefix, by Way, all []hop) route {
	r := route{dst: dst}
	if len(all) > 0 {
		r.via, r.link, r.by = all[0].via, all[0].link, by
		copy(r.also[:], all[1:])
	}
	return r
}

// inKernel is the route as it is read back: the kernel does not keep who announced it.
func (r route) inKernel() route {
	if r.by == WayBGP {
		r.by = WayRoutes
	}
	return r
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
	podCIDRs []netip.Prefix         // the node's podCIDRs
	pods     []netip.Prefix         // every acceptable podCIDR
	nodes    []netip.Addr           // addresses of this node and of those that pods reach as themselves
	routes   map[netip.Prefix]route // by destination
	tunnel   *tunnel                // nil: there is none
	wg       *wireGuard             // nil: there is none
	inside   []netip.Prefix         // destinations that have to see pods' own addresses
	egress   *egressPlan            // nil: no pod has an egress address
	problems []problem
}

// makePlan decides. It is pure: the same nodes and networks give the same plan,
// whatever order the nodes come in.
func makePlan(c clusterState) *plan {
	p := &plan{routes: map[netip.Prefix]route{}, nodes: slices.Clone(c.self.Addrs), tunnel: newTunnel(c), wg: newWireGuard(c)}
	decision := newPodCIDRs(c)
	for _, node := range c.byAge() {
		if node.Name != c.self.Name {
			p.nodes = append(p.nodes, c.seeingPods(node)...)
			p.tunnel.accept(node, decision)
			p.wg.accept(node, decision)
		}
		for _, cidr := range node.PodCIDRs {
			why := decision.accept(node, cidr)
			cidr = cidr.Masked()
			switch {
			case why != "":
				p.problemf(node.Name, reasonPodCIDR, "podCIDR %s of node %s is not used: %s", cidr, node.Name, why)
			case node.Name == c.self.Name:
				p.podCIDRs = append(p.podCIDRs, cidr)
				p.routes[cidr] = route{dst: cidr}
				p.tunnel.addOwn(cidr)
				p.wg.addOwn(cidr)
			default:
				p.addPeer(node, cidr, &c)
			}
		}
	}
	p.addDeparted(decision)
	p.pods = append(p.pods, p.podCIDRs...)
	return p
}

// addPeer plans the route to an accepted podCIDR of a peer, or adds a problem.
func (p *plan) addPeer(peer Peer, cidr netip.Prefix, c *clusterState) {
	p.pods = append(p.pods, cidr)
	p.tunnel.allow(cidr)
	p.wg.allow(peer, cidr, c.enforce)
	direct, neighbour := neighbourRoute(peer, cidr, c.networks)
	switch way := c.wayTo(cidr, neighbour, p.wg != nil && p.wg.why(peer, cidr) == ""); {
	case way == WayWireGuard:
		why := p.wg.why(peer, cidr)
		if why == "" {
			p.routes[cidr] = route{dst: cidr, via: tunnelGateway(peer.Name, cidr), by: WayWireGuard}
			return
		}
		p.routes[cidr] = route{dst: cidr} // or the packets would leave by the default route
		p.problemf(peer.Name, reasonNoKey, "%s: its pods in %s are not reachable from here", why, cidr)
	case way == WayVXLAN:
		if why := p.tunnel.add(peer, cidr); why != "" {
			p.problemf(peer.Name, reasonUnreachable, "%s: its pods in %s are not reachable from here", why, cidr)
			return
		}
		p.routes[cidr] = route{dst: cidr, via: tunnelGateway(peer.Name, cidr), by: WayVXLAN}
	case way == WayBGP:
		if c.egress && p.tunnel != nil { // also for a while after a change from BGP to another way
			_ = p.tunnel.add(peer, cidr) // without it its pods are reached, and it is no gateway
		}
		hops, _ := c.announced.to(cidr)
		p.routes[cidr] = byHops(cidr, WayBGP, hops) // or the packets would leave by the default route
		if len(hops) == 0 {
			p.problemf(peer.Name, reasonNotAnnounced, "no router announces a way to the pods of node %s in %s: they are not reachable from here [fairway speaker: sessions of BGPPeers, what the routers export to nodes]", peer.Name, cidr)
		}
	case neighbour:
		p.routes[cidr] = direct
	case !direct.via.IsValid():
		p.problemf(peer.Name, reasonUnreachable, "node %s has podCIDR %s but no usable InternalIP of that family: its pods are not reachable from here", peer.Name, cidr)
	default:
		p.problemf(peer.Name, reasonUnreachable, "node %s (%s) is behind a router: its pods in %s are not reachable from here (pod network \"routes\" needs all nodes on one link; --pod-network auto reaches others by a tunnel, bgp by routers that carry the pods' routes)", peer.Name, direct.via, cidr)
	}
}

// neighbourRoute is the plain route to a podCIDR of a peer, if the peer is a neighbour.
func neighbourRoute(peer Peer, cidr netip.Prefix, networks []onLink) (r route, neighbour bool) {
	r = route{dst: cidr, by: WayRoutes}
	for _, addr := range peer.Addrs {
		if addr.Is4() != cidr.Addr().Is4() || cidr.Contains(addr) {
			continue
		}
		r.via = addr
		if r.link = linkTo(addr, networks); r.link != 0 {
			return r, true
		}
	}
	return r, false
}

// bind names the links of the routes by tunnels. Where there is none, there is no route, and
// nothing is sent that was to be encrypted.
func (p *plan) bind(links map[Way]int) {
	for dst, r := range p.routes {
		switch link := links[r.by]; {
		case r.by == "" || r.by == WayRoutes || r.by == WayBGP:
		case link != 0:
			r.link = link
			p.routes[dst] = r
		case r.by == WayWireGuard:
			p.routes[dst] = route{dst: dst}
		default:
			delete(p.routes, dst)
		}
	}
}

func (p *plan) problemf(node, reason, format string, args ...any) {
	p.problems = append(p.problems, problem{node, reason, fmt.Sprintf(format, args...)})
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
