package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// An EgressPod is a pod that leaves the cluster with another address than its node's.
type EgressPod struct {
	Node    string     // the pod's: its address has to be in a podCIDR of that node
	Addr    netip.Addr // what the world sees
	Gateway string     // the node that announces Addr; empty: none, and nothing of the pod leaves
}

// Egress is where a Network reads which pods have an egress address, level-triggered.
type Egress interface {
	// Dirty receives when something has changed.
	Dirty() <-chan struct{}
	// Pods are those pods by their addresses. Nobody changes the map any more. As long as they are not known,
	// what the kernel has stays.
	Pods() (all map[netip.Addr]EgressPod, known bool)
}

// Marks of packets that leave the cluster with an egress address.
const (
	markHere   = numbers.MarkEgress
	markNobody = numbers.EgressNobody
	markAnswer = numbers.EgressAnswer
)

// gatewayMark is the mark of packets that go by the routes of table RouteTableEgress + slot.
func gatewayMark(slot int) uint32 {
	i := uint32(slot + 1) // 0 is markHere, the last one markNobody
	return numbers.MarkEgress | i&0xf | i&0x10<<1
}

// egressPlan is what the kernel ought to hold for pods with egress addresses.
type egressPlan struct {
	here       map[netip.Addr]netip.Addr  // pods of any node whose address this node announces, and the address
	via        map[netip.Addr]egressRoute // pods of this node, and the way to the node that does
	unroutable []netip.Addr               // pods whose packets go nowhere
	within     *within                    // nil: no packets go inside of WireGuard
}

// egressRoute is the way to a gateway, in one family.
type egressRoute struct {
	is4  bool
	by   Way
	via  netip.Addr
	link int
}

// planEgress decides about the pods. A pod counts where its node may have its address: who writes the status
// of pods on one node changes nothing for those of others.
func (p *plan) planEgress(c clusterState, pods map[netip.Addr]EgressPod) *egressPlan {
	e := &egressPlan{here: map[netip.Addr]netip.Addr{}, via: map[netip.Addr]egressRoute{}}
	cidrs := map[string][]netip.Prefix{c.self.Name: c.self.PodCIDRs}
	for _, peer := range c.peers {
		cidrs[peer.Name] = peer.PodCIDRs
	}
	missing := map[string]bool{}
	w := p.newWithin(c.self.Name)
	for _, addr := range slices.SortedFunc(maps.Keys(pods), netip.Addr.Compare) {
		pod := pods[addr]
		in := cidrOf(addr, cidrs[pod.Node])
		own := pod.Node == c.self.Name && slices.Contains(p.podCIDRs, in)
		switch {
		case pod.Node != "" && !slices.Contains(p.pods, in):
			continue // refused, or not known any more
		case pod.Gateway == c.self.Name && pod.Addr.IsValid():
			e.here[addr] = pod.Addr
			w.meet(pod.Node, addr)
			w.answer(pod.Node, addr, p.routes[in])
		case own && pod.Gateway != "":
			w.meet(pod.Gateway, addr)
			r, ok := p.wayToGateway(pod.Gateway, addr.Is4(), cidrs, w)
			if !ok {
				e.unroutable = append(e.unroutable, addr)
				missing[pod.Gateway] = true
				break
			}
			e.via[addr] = r
		default:
			e.unroutable = append(e.unroutable, addr)
		}
	}
	for _, gateway := range slices.Sorted(maps.Keys(missing)) {
		p.problemf(gateway, reasonGateway, "pods of node %s cannot leave the cluster by node %s, which announces their egress address: %s", c.self.Name, gateway, p.noWayToGateway(cidrs[gateway], w))
	}
	if w != nil && len(w.partners) > 0 {
		e.within = w
	}
	return e
}

// cidrOf is the podCIDR that an address is in.
func cidrOf(addr netip.Addr, all []netip.Prefix) netip.Prefix {
	for _, cidr := range all {
		if cidr.Contains(addr) {
			return cidr.Masked()
		}
	}
	return netip.Prefix{}
}

// wayToGateway is how a node's pods are reached, if any destination can be, or a tunnel: a router in between, or the
// keys of WireGuard, carry packets to pods alone.
func (p *plan) wayToGateway(gateway string, is4 bool, cidrs map[string][]netip.Prefix, w *within) (egressRoute, bool) {
	for _, cidr := range cidrs[gateway] {
		r, ok := p.routes[cidr.Masked()]
		switch via := tunnelGateway(gateway, cidr.Masked()); {
		case !ok || cidr.Addr().Is4() != is4:
		case r.via.IsValid() && (r.by == WayRoutes || r.by == WayVXLAN):
			return egressRoute{is4, r.by, r.via, r.link}, true
		case r.by == WayBGP && p.tunnel != nil && p.tunnel.gateways[via] != mac{}:
			return egressRoute{is4, WayVXLAN, via, 0}, true
		case r.by == WayWireGuard && w.reaches(via):
			return egressRoute{is4, wayWithin, via, 0}, true
		}
	}
	return egressRoute{}, false
}

// noWayToGateway says why there is none, and what to do.
func (p *plan) noWayToGateway(cidrs []netip.Prefix, w *within) string {
	byKey := slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return p.routes[c.Masked()].by == WayWireGuard })
	if byKey && w != nil && !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == w.tunnel.local.Is4() }) {
		return fmt.Sprintf("it has no podCIDR of IPv%s, between which the tunnel inside of WireGuard leads [podCIDRs of the same families for all nodes; an L2Advertisement whose nodeSelectors leave that node out]", familyName(w.tunnel.local))
	}
	return "it is no neighbour, and no tunnel leads there [--pod-network auto, vxlan, bgp or wireguard; addresses that are announced in the subnet of the pods' nodes]"
}

// bind names the link of a tunnel; 0: there is none.
func (e *egressPlan) bind(way Way, link int) {
	if e == nil {
		return
	}
	for addr, r := range e.via {
		switch {
		case r.by != way:
		case link == 0:
			delete(e.via, addr)
			e.unroutable = append(e.unroutable, addr)
		default:
			r.by, r.link = WayVXLAN, link // as it is read back
			e.via[addr] = r
		}
	}
}

// behind are this node's pods whose answers come by another node.
func (e *egressPlan) behind() (all []netip.Prefix) {
	if e == nil {
		return nil
	}
	for addr := range e.via {
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return all
}

// assign gives each way to a gateway a table. What a table has keeps it, so that no packet meets
// another way than its mark was made for. have are the tables' ways by slot.
func assign(wanted map[egressRoute]bool, have map[int]egressRoute) (slots map[egressRoute]int, without int) {
	slots = map[egressRoute]int{}
	for _, slot := range slices.Sorted(maps.Keys(have)) {
		if _, twice := slots[have[slot]]; wanted[have[slot]] && !twice {
			slots[have[slot]] = slot
		}
	}
	free := 0
	for _, r := range slices.SortedFunc(maps.Keys(wanted), compareEgress) {
		if _, ok := slots[r]; ok {
			continue
		}
		for ; free < numbers.RouteTablesEgress; free++ {
			if _, taken := have[free]; !taken {
				break
			}
		}
		if free == numbers.RouteTablesEgress {
			without++
			continue
		}
		slots[r] = free
		free++
	}
	return slots, without
}

func compareEgress(a, b egressRoute) int {
	return compareHops(hop{a.via, a.link}, hop{b.via, b.link})
}

// limit is said of ways beyond the number of tables.
func (p *plan) limit(without int) {
	if without > 0 {
		p.problems = append(p.problems, problem{reason: reasonGateway, message: fmt.Sprintf("pods of this node would leave the cluster by %d nodes more than the %d that are possible: those reach nothing outside [fewer egress addresses, or pods of fewer Services on this node]", without, numbers.RouteTablesEgress)})
	}
}
