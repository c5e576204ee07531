package node

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// A Way is how packets reach the pods of other nodes.
type Way string

// The ways.
const (
	WayRoutes Way = "routes" // plain routes, to neighbours only
	WayVXLAN  Way = "vxlan"  // through a VXLAN tunnel
	WayAuto   Way = "auto"   // plain routes to neighbours, the tunnel to all others

	WayWireGuard Way = "wireguard" // encrypted
	WayBGP       Way = "bgp"       // plain routes to neighbours, to all others by routers that announce them
)

// A mac is an Ethernet address.
type mac [6]byte

func (m mac) String() string { return net.HardwareAddr(m[:]).String() }

// tunnelMAC is the address of a node's end of the tunnel. It follows from the name, so that
// no node has to publish its own. 46 bits differ: two of 5,000 nodes have the same one in 1 of 6
// million clusters, and then the younger of them is reported.
func tunnelMAC(node string) mac {
	sum := sha256.Sum256([]byte("fairway vxlan " + node))
	m := mac(sum[:])
	m[0] = m[0]&^1 | 2 // of one host, locally administered
	return m
}

// tunnelGateway is what the route to a podCIDR of a node leads to. IPv4: the podCIDR's first address, which no pod
// gets. IPv6: a link-local one of the MAC address, because the kernel refuses a gateway that
// another link leads to, as with a plain route that is to be replaced.
func tunnelGateway(node string, cidr netip.Prefix) netip.Addr {
	if cidr.Addr().Is4() {
		return cidr.Addr()
	}
	m := tunnelMAC(node)
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// A tunnel is the wanted state of the VXLAN device. A nil tunnel ignores what is added.
type tunnel struct {
	local netip.Addr // this node's end; invalid: the node has no address
	mac   mac
	// addrs are the first addresses of the node's podCIDRs, which no pod gets: packets of the node
	// itself leave with them, so that answers come back by the tunnel.
	addrs []netip.Addr
	// remotes are the nodes' ends (FDB), and gateways what leads to them (neighbours).
	remotes  map[mac]netip.Addr
	gateways map[netip.Addr]mac
	// nodes are the addresses that packets of the tunnel may come from, and sources those that
	// they may have inside.
	nodes   []netip.Addr
	sources []netip.Prefix

	// forEgress: pods are reached without it, but for those of nodes that have not changed yet.
	forEgress bool

	ends  map[string]netip.Addr // of accepted nodes, by name
	owner map[mac]string        // name of the node that has it
}

// newTunnel returns the tunnel without peers; nil: there is to be none.
func newTunnel(c clusterState) *tunnel {
	if !c.tunnels() && !c.receive && !c.tunnelsEgress() {
		return nil
	}
	t := &tunnel{
		forEgress: c.tunnelsEgress(), mac: tunnelMAC(c.self.Name), remotes: map[mac]netip.Addr{}, gateways: map[netip.Addr]mac{},
		ends: map[string]netip.Addr{}, owner: map[mac]string{},
	}
	t.local = underlay(c.self.Addrs, netip.Addr.Is4)
	if !t.local.IsValid() {
		t.local = underlay(c.self.Addrs, netip.Addr.Is6)
	}
	t.owner[t.mac] = c.self.Name
	return t
}

// underlay is the first address of a family that can be an end of a tunnel.
func underlay(addrs []netip.Addr, family func(netip.Addr) bool) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool {
		return family(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
	})
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}

// accept takes a peer's end of the tunnel, if it can be one. Ends inside of podCIDRs of other
// nodes cannot: packets to them would go through the tunnel themselves.
func (t *tunnel) accept(peer Peer, decision *podCIDRs) {
	if t == nil || !t.local.IsValid() {
		return
	}
	family := netip.Addr.Is6
	if t.local.Is4() {
		family = netip.Addr.Is4
	}
	end := underlay(peer.Addrs, family)
	if !end.IsValid() || slices.Contains(decision.self.Addrs, end) {
		return
	}
	if decision.inPods(peer.Name, end) {
		return
	}
	t.ends[peer.Name] = end
	t.nodes = append(t.nodes, end)
	t.sources = append(t.sources, netip.PrefixFrom(end, end.BitLen()))
}

// addOwn takes a podCIDR of this node.
func (t *tunnel) addOwn(cidr netip.Prefix) {
	if t != nil {
		t.addrs = append(t.addrs, cidr.Addr())
	}
}

// allow takes packets from pods of a peer.
func (t *tunnel) allow(cidr netip.Prefix) {
	if t != nil {
		t.sources = append(t.sources, cidr)
	}
}

// add leads to a podCIDR of a peer, or returns why it cannot.
func (t *tunnel) add(peer Peer, cidr netip.Prefix) (why string) {
	end, ok := t.ends[peer.Name]
	m := tunnelMAC(peer.Name)
	switch {
	case !t.local.IsValid():
		return "this node has no InternalIP for a tunnel"
	case !ok:
		return fmt.Sprintf("node %s has no InternalIP that a tunnel from %s can lead to", peer.Name, t.local)
	case cidr.Contains(end):
		return fmt.Sprintf("the address %s of node %s is in its own podCIDR", end, peer.Name)
	case t.owner[m] != "" && t.owner[m] != peer.Name:
		return fmt.Sprintf("node %s has the MAC address %s in the tunnel, as node %s has, which is older [give the node another name]", peer.Name, m, t.owner[m])
	}
	t.owner[m], t.remotes[m], t.gateways[tunnelGateway(peer.Name, cidr)] = peer.Name, end, m
	return ""
}
