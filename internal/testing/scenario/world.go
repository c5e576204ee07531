package scenario

import "net/netip"

// A Place is a possible client of a packet, with its address of each family.
type Place struct {
	Name   string
	V4, V6 netip.Addr
	OnNode bool // the node itself or a pod of the node
}

// Addr returns the place's address of a family.
func (p Place) Addr(is4 bool) netip.Addr {
	if is4 {
		return p.V4
	}
	return p.V6
}

// World has the places of every scenario. The addresses of the nodes and of the host outside are those of
// internal/testing/testnet.
var World = struct {
	Pod, PodRemote, Node, Peer, Outside Place
	// Extra are additional addresses of the node.
	Extra Place
	// Routed are prefixes that are routed to the node, so that clients elsewhere can call its ClusterIPs, and the
	// addresses of load balancers and external IPs.
	Routed []netip.Prefix
}{
	Pod:       newPlace("pod", "10.244.1.200", "fd00:10:244:1::200", true),
	PodRemote: newPlace("pod-remote", "10.244.2.200", "fd00:10:244:2::200", false),
	Node:      newPlace("node", "172.18.0.11", "fd00:172:18::11", true),
	Peer:      newPlace("peer", "172.18.0.12", "fd00:172:18::12", false),
	Outside:   newPlace("outside", "198.51.100.10", "2001:db8:51::10", false),
	Extra:     newPlace("extra", "192.0.2.11", "2001:db8:2::11", true),
	Routed: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/108"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:9::/64"),
	},
}

// Places returns all places, without endpoints.
func Places() []Place {
	return []Place{World.Pod, World.PodRemote, World.Node, World.Peer, World.Outside}
}

func newPlace(name, v4, v6 string, onNode bool) Place {
	return Place{Name: name, V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6), OnNode: onNode}
}

// ofNode reports whether an address is the node's own.
func ofNode(a netip.Addr) bool {
	w := &World
	return a.IsLoopback() || a == w.Node.Addr(a.Is4()) || a == w.Extra.Addr(a.Is4())
}
