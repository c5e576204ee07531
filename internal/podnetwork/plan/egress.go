package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// An EgressPod is a pod whose packets leave the cluster with an egress address instead of its node's address.
type EgressPod struct {
	Node    string     // of the pod; the pod's address must be in a podCIDR of this node
	Addr    netip.Addr // the source address outside
	Gateway string     // the node that announces Addr; empty: none, so no packet leaves
}

// Egress is the wanted state of the kernel for pods with egress addresses.
type Egress struct {
	Here       map[netip.Addr]netip.Addr  // egress addresses that this node announces, by the pod, which may be another node's
	Via        map[netip.Addr]EgressRoute // ways to the nodes that announce the egress addresses, by the pod, which is this node's
	Unroutable []netip.Addr               // pods whose packets go nowhere
	Addrs      map[netip.Addr]bool        // all announced egress addresses; none of a node or a pod
	Within     *Within                    // nil: no packets go inside of WireGuard
}

// An EgressRoute is the way to a gateway, in one family.
type EgressRoute struct {
	Is4  bool
	By   Way
	Via  netip.Addr
	Link int
}

// AddEgress decides about the pods and sets p.Egress. A pod counts only if its address is in a podCIDR of its node, so
// that a node cannot change the egress of another node's pods by a false pod status.
func (p *Plan) AddEgress(c State, pods map[netip.Addr]EgressPod) *Egress {
	e := &Egress{Here: map[netip.Addr]netip.Addr{}, Via: map[netip.Addr]EgressRoute{}, Addrs: map[netip.Addr]bool{}}
	cidrs := map[string][]netip.Prefix{c.Self.Name: c.Self.PodCIDRs}
	for _, peer := range c.Peers {
		cidrs[peer.Name] = peer.PodCIDRs
	}
	missing := map[string]bool{}
	w := p.newWithin(c.Self.Name)
	for _, addr := range slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare) {
		pod := pods[addr]
		in := cidrOf(addr, cidrs[pod.Node])
		own := pod.Node == c.Self.Name && slices.Contains(p.PodCIDRs, in)
		if pod.Gateway != "" && pod.Addr.IsValid() {
			e.Addrs[pod.Addr] = true
		}
		switch {
		case pod.Node != "" && !slices.Contains(p.Pods, in):
			continue // the podCIDR was refused, or its node is not known
		case pod.Gateway == c.Self.Name && pod.Addr.IsValid():
			e.Here[addr] = pod.Addr
			w.meet(pod.Node, addr)
			w.answer(pod.Node, addr, p.Routes[in])
		case own && pod.Gateway != "":
			w.meet(pod.Gateway, addr)
			r, ok := p.wayToGateway(pod.Gateway, addr.Is4(), cidrs, w)
			if !ok {
				e.Unroutable = append(e.Unroutable, addr)
				missing[pod.Gateway] = true
				break
			}
			e.Via[addr] = r
		default:
			e.Unroutable = append(e.Unroutable, addr)
		}
	}
	e.withoutOwners(c, p.Pods)
	for _, gateway := range slices.Sorted(maps.Keys(missing)) {
		p.problemf(gateway, ReasonGateway, "pods of node %s cannot leave the cluster by node %s, which announces their egress address: %s", c.Self.Name, gateway, p.noWayToGateway(cidrs[gateway], w))
	}
	if w != nil && len(w.Partners) > 0 {
		e.Within = w
	}
	return e
}

// withoutOwners removes the egress addresses that a node or a pod has: its own packets have them too.
func (e *Egress) withoutOwners(c State, pods []netip.Prefix) {
	for _, peer := range append(slices.Clip(c.Peers), c.Self) {
		for _, addr := range peer.Addrs {
			delete(e.Addrs, addr)
		}
	}
	for addr := range e.Addrs {
		if cidrOf(addr, pods).IsValid() {
			delete(e.Addrs, addr)
		}
	}
}

// cidrOf returns the podCIDR that contains an address; the zero prefix: none does.
func cidrOf(addr netip.Addr, all []netip.Prefix) netip.Prefix {
	for _, cidr := range all {
		if cidr.Contains(addr) {
			return cidr.Masked()
		}
	}
	return netip.Prefix{}
}

// wayToGateway returns the way to a gateway for packets to any destination. A plain route or a tunnel has no limit.
// Routers in between and WireGuard's keys carry packets to pods only.
func (p *Plan) wayToGateway(gateway string, is4 bool, cidrs map[string][]netip.Prefix, w *Within) (EgressRoute, bool) {
	for _, cidr := range cidrs[gateway] {
		r, ok := p.Routes[cidr.Masked()]
		switch via := TunnelGateway(gateway, cidr.Masked()); {
		case !ok || cidr.Addr().Is4() != is4:
		case r.Via.IsValid() && (r.By == WayRoutes || r.By == WayVXLAN):
			return EgressRoute{is4, r.By, r.Via, r.Link}, true
		case r.By == WayBGP && p.Tunnel != nil && p.Tunnel.Gateways[via] != MAC{}:
			return EgressRoute{is4, WayVXLAN, via, 0}, true
		case r.By == WayWireGuard && w.reaches(via):
			return EgressRoute{is4, WayWithin, via, 0}, true
		}
	}
	return EgressRoute{}, false
}

// noWayToGateway returns the reason why a gateway is not reached, with advice.
func (p *Plan) noWayToGateway(cidrs []netip.Prefix, w *Within) string {
	byKey := slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return p.Routes[c.Masked()].By == WayWireGuard })
	if byKey && w != nil && !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == w.Tunnel.Local.Is4() }) {
		return fmt.Sprintf("it has no podCIDR of IPv%s, between which the tunnel inside of WireGuard leads [podCIDRs of the same families for all nodes; an L2Advertisement whose nodeSelectors leave that node out]", FamilyName(w.Tunnel.Local))
	}
	return "it is no neighbour, and no tunnel leads there [--pod-network auto, vxlan, bgp or wireguard; addresses that are announced in the subnet of the pods' nodes]"
}

// Bind sets the link of the routes by a tunnel. Link 0: there is no tunnel, and the packets go nowhere.
func (e *Egress) Bind(way Way, link int) {
	if e == nil {
		return
	}
	for addr, r := range e.Via {
		switch {
		case r.By != way:
		case link == 0:
			delete(e.Via, addr)
			e.Unroutable = append(e.Unroutable, addr)
		default:
			r.By, r.Link = WayVXLAN, link // as it is read back
			e.Via[addr] = r
		}
	}
}

// Behind returns this node's pods whose answers come back by another node.
func (e *Egress) Behind() (all []netip.Prefix) {
	if e == nil {
		return nil
	}
	for addr := range e.Via {
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return all
}
