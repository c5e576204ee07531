package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// A WireGuard is the wanted state of the WireGuard device. Methods of a nil WireGuard do nothing.
type WireGuard struct {
	Self  []netip.Addr // this node's addresses
	Addrs []netip.Addr // of the device, as of a Tunnel
	Peers map[Key]*WireGuardPeer
	keys  map[string]Key // by name of the accepted node
	owner map[Key]string // name of the node, by key
	users map[Key]string // name of the node whose podCIDRs the kernel allows for a key, if the node still has that key
	// Encrypted are the podCIDRs whose packets pass only through the device, in both directions.
	Encrypted []netip.Prefix
}

// A WireGuardPeer is a node as a peer of the WireGuard device.
type WireGuardPeer struct {
	Endpoint netip.AddrPort
	// Allowed are the destinations that lead to the peer, and the inner sources that it may use. Sorted.
	Allowed []netip.Prefix
	// Known are all addresses of the node. WireGuard changes the endpoint to the source of the peer's last packet.
	Known []netip.Addr
}

// newWireGuard returns the device without peers. Nil: no device is wanted.
func newWireGuard(c State) *WireGuard {
	if c.Way != WayWireGuard && !c.Decrypt {
		return nil
	}
	w := &WireGuard{Self: c.Self.Addrs, Peers: map[Key]*WireGuardPeer{}, keys: map[string]Key{}, owner: map[Key]string{}, users: map[Key]string{}}
	if c.Key != (Key{}) {
		w.owner[c.Key] = c.Self.Name
	}
	for _, peer := range c.Peers {
		if slices.ContainsFunc(peer.PodCIDRs, func(cidr netip.Prefix) bool { return slices.Contains(c.AllowedIPs[peer.Key], cidr.Masked()) }) {
			w.users[peer.Key] = peer.Name
		}
	}
	return w
}

// accept takes a peer with a key and an address. The key must not belong to an older node, and must not be in use for
// another node. The address must not be in another node's podCIDR, because packets to it would be encrypted themselves.
func (w *WireGuard) accept(peer Peer, decision *podCIDRs) {
	if w == nil || peer.Key == (Key{}) {
		return
	}
	end := Underlay(peer.Addrs, netip.Addr.Is4)
	if !end.IsValid() || !Underlay(w.Self, netip.Addr.Is4).IsValid() {
		end = Underlay(peer.Addrs, netip.Addr.Is6)
	}
	if !end.IsValid() || slices.Contains(w.Self, end) || w.owner[peer.Key] != "" || w.taken(peer) != "" {
		return
	}
	if decision.inPods(peer.Name, end) {
		return
	}
	w.owner[peer.Key], w.keys[peer.Name] = peer.Name, peer.Key
	w.Peers[peer.Key] = &WireGuardPeer{Endpoint: netip.AddrPortFrom(end, numbers.PortWireGuard), Known: peer.Addrs}
}

// taken names the other node for which the kernel uses the key of a peer. Empty: there is none.
func (w *WireGuard) taken(peer Peer) string {
	if user := w.users[peer.Key]; user != peer.Name {
		return user
	}
	return ""
}

// addOwn adds a podCIDR of this node.
func (w *WireGuard) addOwn(cidr netip.Prefix) {
	if w != nil {
		w.Addrs = append(w.Addrs, cidr.Addr())
	}
}

// allow adds a podCIDR to the allowed addresses of a peer. A peer without a key has none.
func (w *WireGuard) allow(peer Peer, cidr netip.Prefix, enforce bool) {
	if w == nil {
		return
	}
	if enforce {
		w.Encrypted = append(w.Encrypted, cidr)
	}
	if p := w.Peers[w.keys[peer.Name]]; p != nil {
		p.Allowed = append(p.Allowed, cidr)
		slices.SortFunc(p.Allowed, netip.Prefix.Compare)
	}
}

// why returns the reason why WireGuard does not reach a podCIDR of a peer. Empty: it does.
func (w *WireGuard) why(peer Peer, cidr netip.Prefix) string {
	key, ok := w.keys[peer.Name]
	other := w.owner[peer.Key]
	switch {
	case ok && cidr.Contains(w.Peers[key].Endpoint.Addr()):
		return fmt.Sprintf("the address %s of node %s is in its own podCIDR", w.Peers[key].Endpoint.Addr(), peer.Name)
	case ok:
		return ""
	case peer.Key == (Key{}):
		return fmt.Sprintf("node %s has no WireGuard key, and nothing is sent unencrypted [does its agent run with --pod-network wireguard, and may it publish its key? deploy/components/wireguard]", peer.Name)
	case w.taken(peer) != "":
		return fmt.Sprintf("node %s has the WireGuard key of node %s, which is in use there", peer.Name, w.taken(peer))
	case other != "":
		return fmt.Sprintf("node %s has the WireGuard key of node %s, which is older", peer.Name, other)
	}
	return fmt.Sprintf("node %s has no InternalIP that WireGuard can lead to", peer.Name)
}

// Overhead returns the bytes that WireGuard adds to a packet to any peer: 60 over IPv4, 80 over IPv6.
func (w *WireGuard) Overhead() int {
	six := !Underlay(w.Self, netip.Addr.Is4).IsValid()
	for _, p := range w.Peers {
		six = six || p.Endpoint.Addr().Is6()
	}
	if six {
		return 8 + 32 + 40
	}
	return 8 + 32 + 20
}
