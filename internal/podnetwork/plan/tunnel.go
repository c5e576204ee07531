package plan

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// A Way is a way to the pods of other nodes.
type Way string

// The ways.
const (
	WayRoutes Way = "routes" // plain routes, to neighbours only
	WayVXLAN  Way = "vxlan"  // through a VXLAN tunnel
	WayAuto   Way = "auto"   // plain routes to neighbours, VXLAN to all others

	WayWireGuard Way = "wireguard" // encrypted
	WayBGP       Way = "bgp"       // plain routes to neighbours, routers' announcements to all others
)

// A MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// TunnelMAC returns the MAC address of a node's end of the tunnel. It is a hash of the name, so that no node has to
// publish it. 46 bits differ: among 5,000 nodes two addresses are equal in 1 of 6 million clusters. Then the younger
// node is reported.
func TunnelMAC(node string) MAC {
	sum := sha256.Sum256([]byte("fairway vxlan " + node))
	m := MAC(sum[:])
	m[0] = m[0]&^1 | 2 // unicast, locally administered
	return m
}

// TunnelGateway returns the gateway of the route to a podCIDR of a node. For IPv4 it is the podCIDR's first address,
// which no pod gets. For IPv6 it is the link-local address of the MAC address, because the kernel refuses a gateway to
// which another link leads, for example when a plain route is replaced.
func TunnelGateway(node string, cidr netip.Prefix) netip.Addr {
	if cidr.Addr().Is4() {
		return cidr.Addr()
	}
	m := TunnelMAC(node)
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// A Tunnel is the wanted state of the VXLAN device. Methods of a nil Tunnel do nothing.
type Tunnel struct {
	Local netip.Addr // this node's end; invalid: the node has no address for it
	MAC   MAC
	// Addrs are the first addresses of the node's podCIDRs, which no pod gets. Packets of the node itself have them as
	// source, so that answers come back through the tunnel.
	Addrs []netip.Addr
	// Remotes are the ends at other nodes (FDB). Gateways are the next hops of routes (neighbours).
	Remotes  map[MAC]netip.Addr
	Gateways map[netip.Addr]MAC
	// Nodes are the outer source addresses that the tunnel accepts, and Sources the inner ones.
	Nodes   []netip.Addr
	Sources []netip.Prefix

	// ForEgress: the tunnel carries packets to egress gateways, and packets of nodes that have not changed yet.
	ForEgress bool

	ends  map[string]netip.Addr // of accepted nodes, by name
	owner map[MAC]string        // name of the node, by MAC address
}

// newTunnel returns the tunnel without peers. Nil: no tunnel is wanted.
func newTunnel(c State) *Tunnel {
	if !c.tunnels() && !c.Receive && !c.tunnelsEgress() {
		return nil
	}
	t := &Tunnel{
		ForEgress: c.tunnelsEgress(), MAC: TunnelMAC(c.Self.Name), Remotes: map[MAC]netip.Addr{}, Gateways: map[netip.Addr]MAC{},
		ends: map[string]netip.Addr{}, owner: map[MAC]string{},
	}
	t.Local = Underlay(c.Self.Addrs, netip.Addr.Is4)
	if !t.Local.IsValid() {
		t.Local = Underlay(c.Self.Addrs, netip.Addr.Is6)
	}
	t.owner[t.MAC] = c.Self.Name
	return t
}

// Underlay returns the first address of a family that can be an end of a tunnel; the zero address: none can.
func Underlay(addrs []netip.Addr, family func(netip.Addr) bool) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool {
		return family(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
	})
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}

// accept takes a peer's end of the tunnel. An end in another node's podCIDR is left out, because packets to it would go
// through the tunnel themselves.
func (t *Tunnel) accept(peer Peer, decision *podCIDRs) {
	if t == nil || !t.Local.IsValid() {
		return
	}
	family := netip.Addr.Is6
	if t.Local.Is4() {
		family = netip.Addr.Is4
	}
	end := Underlay(peer.Addrs, family)
	if !end.IsValid() || slices.Contains(decision.Self.Addrs, end) {
		return
	}
	if decision.inPods(peer.Name, end) {
		return
	}
	t.ends[peer.Name] = end
	t.Nodes = append(t.Nodes, end)
	t.Sources = append(t.Sources, netip.PrefixFrom(end, end.BitLen()))
}

// addOwn adds a podCIDR of this node.
func (t *Tunnel) addOwn(cidr netip.Prefix) {
	if t != nil {
		t.Addrs = append(t.Addrs, cidr.Addr())
	}
}

// allow accepts packets from a podCIDR of a peer.
func (t *Tunnel) allow(cidr netip.Prefix) {
	if t != nil {
		t.Sources = append(t.Sources, cidr)
	}
}

// add plans the tunnel to a podCIDR of a peer, or returns the reason why it cannot.
func (t *Tunnel) add(peer Peer, cidr netip.Prefix) (why string) {
	end, ok := t.ends[peer.Name]
	m := TunnelMAC(peer.Name)
	switch {
	case !t.Local.IsValid():
		return "this node has no InternalIP for a tunnel"
	case !ok:
		return fmt.Sprintf("node %s has no InternalIP that a tunnel from %s can lead to", peer.Name, t.Local)
	case cidr.Contains(end):
		return fmt.Sprintf("the address %s of node %s is in its own podCIDR", end, peer.Name)
	case t.owner[m] != "" && t.owner[m] != peer.Name:
		return fmt.Sprintf("node %s has the MAC address %s in the tunnel, as node %s has, which is older [give the node another name]", peer.Name, m, t.owner[m])
	}
	t.owner[m], t.Remotes[m], t.Gateways[TunnelGateway(peer.Name, cidr)] = peer.Name, end, m
	return ""
}
