package plan

import (
	"net/netip"
	"slices"
)

// A Why says why a packet takes its way.
type Why string

// The reasons. WhyNoPod, WhyNoWay, WhyNoGateway and WhyNoRoute have no hops: the packet goes nowhere.
const (
	WhySelf       Why = "address of this node"
	WhyOwnPod     Why = "pod of this node"
	WhyNoPod      Why = "podCIDR of this node, but no pod has the address"
	WhyNeighbour  Why = "pods of another node, by a route to that node"
	WhyTunnel     Why = "pods of another node, through the VXLAN tunnel"
	WhyEncrypted  Why = "pods of another node, through WireGuard"
	WhyRouters    Why = "pods of another node, by routers that announce them"
	WhyNoWay      Why = "pods of another node, to which no way leads"
	WhyLink       Why = "network of a link of this node"
	WhyOutside    Why = "outside, by a route of another program"
	WhyMasquerade Why = "outside, with this node's address instead of the pod's"
	WhyEgressHere Why = "outside, with the egress address that this node announces"
	WhyEgressNode Why = "outside, by the node that announces the pod's egress address"
	WhyNoGateway  Why = "outside, but no node can send it with the pod's egress address"
	WhyNoRoute    Why = "no route"
)

// A Next is the next step of a packet.
type Next struct {
	Why Why
	// Node is the node with the destination's podCIDR. Empty: no other node has it.
	Node string
	// Hops are the possible next steps: a link, and a next hop unless the destination is on the link. The kernel
	// chooses one for each flow. Empty: the packet goes nowhere, or to this node itself.
	Hops []Hop
	// Source is the source address that the packet gets. Invalid: it keeps its own, or Why is WhyMasquerade.
	Source netip.Addr
}

// whyBy is the reason of a route to another node's pods.
var whyBy = map[Way]Why{WayRoutes: WhyNeighbour, WayVXLAN: WhyTunnel, WayWireGuard: WhyEncrypted, WayBGP: WhyRouters}

// Lookup returns the next step of a packet from this node to an address. It decides as the kernel does, by the longest
// prefix, once the kernel holds the plan.
func (p *Plan) Lookup(destination netip.Addr) Next {
	if slices.Contains(p.own(), destination) {
		return Next{Why: WhySelf}
	}
	if link, ok := p.OwnPods[destination]; ok {
		return Next{Why: WhyOwnPod, Hops: []Hop{{Link: link}}}
	}
	best, ours := Route{}, false
	consider := func(r Route, isOurs bool) {
		if r.Dst.Contains(destination) && (!best.Dst.IsValid() || r.Dst.Bits() > best.Dst.Bits()) {
			best, ours = r, isOurs
		}
	}
	for _, r := range p.Foreign {
		consider(r, false)
	}
	for _, r := range p.Routes {
		consider(r, true)
	}
	next := Next{Node: p.nodeOf[best.Dst]}
	switch {
	case !best.Dst.IsValid():
		return Next{Why: WhyNoRoute}
	case !ours && !best.Via.IsValid():
		return Next{Why: WhyLink, Hops: []Hop{{Link: best.Link}}}
	case !ours:
		return Next{Why: WhyOutside, Hops: []Hop{{Via: best.Via, Link: best.Link}}}
	case best.Via.IsValid():
		next.Why, next.Hops = whyBy[best.By], best.Hops()
	case next.Node == "":
		next.Why = WhyNoPod
	default:
		next.Why = WhyNoWay
	}
	return next
}

// own returns the addresses of this node, with those of its tunnels.
func (p *Plan) own() []netip.Addr {
	all := slices.Clone(p.Self)
	if p.Tunnel != nil {
		all = append(all, p.Tunnel.Addrs...)
	}
	if p.WireGuard != nil {
		all = append(all, p.WireGuard.Addrs...)
	}
	return all
}

// LookupFrom is Lookup for a packet that a pod of this node sends. Its address may change, and its egress address may
// be another node's.
func (p *Plan) LookupFrom(pod, destination netip.Addr) Next {
	next := p.Lookup(destination)
	within := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(c netip.Prefix) bool { return c.Contains(destination) })
	}
	if next.Why == WhySelf || within(p.Inside) {
		return next
	}
	if e := p.Egress; e != nil && !within(linkLocal) {
		if source, here := e.Here[pod]; here {
			next.Why, next.Source = WhyEgressHere, source
			return next
		}
		if r, ok := e.Via[pod]; ok {
			return Next{Why: WhyEgressNode, Hops: []Hop{{Via: r.Via, Link: r.Link}}}
		}
		if slices.Contains(e.Unroutable, pod) {
			return Next{Why: WhyNoGateway}
		}
	}
	masqueraded := slices.ContainsFunc(p.Masqueraded, func(c netip.Prefix) bool { return c.Contains(pod) })
	if masqueraded && len(next.Hops) > 0 && !within(p.NonMasquerade) {
		next.Why = WhyMasquerade
	}
	return next
}
