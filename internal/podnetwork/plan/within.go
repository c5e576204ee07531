package plan

import (
	"maps"
	"net/netip"
	"slices"
)

// WayWithin is VXLAN inside of WireGuard. WireGuard carries only packets between allowed addresses. So packets of pods
// to and from the world travel in packets between the first addresses of the nodes' podCIDRs.
const WayWithin Way = "within"

// A Within is the wanted state of that tunnel. Methods of a nil Within do nothing.
type Within struct {
	Tunnel *Tunnel
	macs   map[string]MAC // of the possible other ends, by node name
	// Partners are the other ends for each pod: the pod's node if the pod leaves by this node, or the gateway of a pod
	// of this node.
	Partners map[netip.Addr]MAC
	Answered []netip.Addr                // pods of other nodes whose answers go through the tunnel
	Answers  map[netip.Prefix]netip.Addr // gateways by the podCIDRs of these pods
}

// newWithin returns the tunnel to all nodes with known keys. Nil: there is none.
func (p *Plan) newWithin(self string) *Within {
	if p.WireGuard == nil || len(p.WireGuard.Addrs) == 0 {
		return nil
	}
	w := &Within{macs: map[string]MAC{}, Partners: map[netip.Addr]MAC{}, Answers: map[netip.Prefix]netip.Addr{}}
	// The device needs addresses, because rp_filter drops all packets of a link without one.
	w.Tunnel = &Tunnel{MAC: TunnelMAC(self), Local: Underlay(p.WireGuard.Addrs, netip.Addr.Is4), Addrs: p.WireGuard.Addrs, Remotes: map[MAC]netip.Addr{}, Gateways: map[netip.Addr]MAC{}}
	if !w.Tunnel.Local.IsValid() {
		w.Tunnel.Local = p.WireGuard.Addrs[0]
	}
	taken := map[MAC]bool{w.Tunnel.MAC: true}
	for _, name := range slices.Sorted(maps.Keys(p.WireGuard.keys)) {
		m, cidrs := TunnelMAC(name), p.WireGuard.Peers[p.WireGuard.keys[name]].Allowed
		i := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == w.Tunnel.Local.Is4() })
		if i < 0 || taken[m] {
			continue
		}
		taken[m], w.macs[name], w.Tunnel.Remotes[m] = true, m, cidrs[i].Addr()
		for _, cidr := range cidrs {
			w.Tunnel.Gateways[TunnelGateway(name, cidr)] = m
		}
	}
	return w
}

// reaches reports whether the tunnel carries packets for any destination to a node's end.
func (w *Within) reaches(via netip.Addr) bool { return w != nil && w.Tunnel.Gateways[via] != MAC{} }

// meet allows packets of a pod from and to a node.
func (w *Within) meet(node string, pod netip.Addr) {
	if w != nil && w.macs[node] != (MAC{}) {
		w.Partners[pod] = w.macs[node]
	}
}

// answer takes a pod of another node that leaves by this one, with the route to it. WireGuard's keys would drop the
// answers from the world.
func (w *Within) answer(node string, pod netip.Addr, to Route) {
	if w != nil && w.macs[node] != (MAC{}) && to.By == WayWireGuard {
		w.Answered = append(w.Answered, pod)
		w.Answers[to.Dst] = to.Via
	}
}

// Wanted returns the tunnel. Nil: no tunnel is wanted.
func (w *Within) Wanted() *Tunnel {
	if w == nil {
		return nil
	}
	return w.Tunnel
}

// FamilyName returns the suffix of the names of sets: 4 or 6.
func FamilyName(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}
