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
	// onLink: by the tunnel, where via is in no network of the link.
	onLink bool
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
	nodes    []netip.Addr           // addresses of this node and of those that pods reach as themselves
	routes   map[netip.Prefix]route // by destination
	tunnel   *tunnel                // nil: there is none
	problems []problem
}

// makePlan decides. It is pure: the same nodes and networks give the same plan,
// whatever order the nodes come in.
func makePlan(c clusterState) *plan {
	p := &plan{routes: map[netip.Prefix]route{}, nodes: slices.Clone(c.self.Addrs), tunnel: newTunnel(c)}
	decision := newPodCIDRs(c)
	for _, node := range c.byAge() {
		if node.Name != c.self.Name {
			p.nodes = append(p.nodes, c.seeingPods(node)...)
			p.tunnel.accept(node, decision)
		}
		for _, cidr := range node.PodCIDRs {
			why := decision.accept(node, cidr)
			cidr = cidr.Masked()
			switch {
			case why != "":
				p.problemf(node.Name, reasonPodCIDR, "podCIDR %s of node %s is not used: %s", cidr, node.Name, why)
			case node.Name == c.self.Name:
				p.own = append(p.own, cidr)
				p.routes[cidr] = route{dst: cidr}
				p.tunnel.addOwn(cidr)
			default:
				p.addPeer(node, cidr, &c)
			}
		}
	}
	p.addDeparted(decision)
	p.pods = append(p.pods, p.own...)
	return p
}

// addPeer plans the route to an accepted podCIDR of a peer, or adds a problem.
func (p *plan) addPeer(peer Peer, cidr netip.Prefix, c *clusterState) {
	p.pods = append(p.pods, cidr)
	p.tunnel.allow(cidr)
	r := route{dst: cidr}
	for _, addr := range peer.Addrs {
		if addr.Is4() != cidr.Addr().Is4() || cidr.Contains(addr) {
			continue
		}
		r.via = addr
		if r.link = linkTo(addr, c.networks); r.link != 0 && c.direct(cidr) {
			p.routes[cidr] = r
			return
		}
	}
	if c.tunnels() && p.tunnel != nil {
		if why := p.tunnel.add(peer, cidr); why != "" {
			p.problemf(peer.Name, reasonUnreachable, "%s: its pods in %s are not reachable from here", why, cidr)
			return
		}
		p.routes[cidr] = route{dst: cidr, via: tunnelGateway(peer.Name, cidr), onLink: true}
		return
	}
	if !r.via.IsValid() {
		p.problemf(peer.Name, reasonUnreachable, "node %s has podCIDR %s but no usable InternalIP of that family: its pods are not reachable from here", peer.Name, cidr)
		return
	}
	p.problemf(peer.Name, reasonUnreachable, "node %s (%s) is behind a router: its pods in %s are not reachable from here (pod network \"routes\" needs all nodes on one link; --pod-network auto reaches others by a tunnel; or let the routers carry the pods' routes)", peer.Name, r.via, cidr)
}

// bind names the link of the routes by the tunnel. 0: there is none, nor are there these routes.
func (p *plan) bind(link int) {
	for dst, r := range p.routes {
		switch {
		case !r.onLink:
		case link == 0:
			delete(p.routes, dst)
		default:
			r.link = link
			p.routes[dst] = r
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
