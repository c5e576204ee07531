package node

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// A wireGuard is the wanted state of the WireGuard device. A nil one ignores what is added.
type wireGuard struct {
	self  []netip.Addr // this node's addresses
	addrs []netip.Addr // the device's, as a tunnel's
	peers map[Key]*wgWanted
	keys  map[string]Key // of accepted nodes, by name
	owner map[Key]string // name of the node that has it
	users map[Key]string // of keys in the kernel: name of the node whose podCIDRs they stand for there, if it still has it
	// encrypted are podCIDRs whose packets neither come nor go but by the device.
	encrypted []netip.Prefix
}

// A wgWanted is a peer as it is to be.
type wgWanted struct {
	wgPeer
	// known are all addresses of the node: WireGuard learns from which one its packets come.
	known []netip.Addr
}

// newWireGuard returns the device without peers; nil: there is to be none.
func newWireGuard(c clusterState) *wireGuard {
	if c.way != WayWireGuard && !c.decrypt {
		return nil
	}
	w := &wireGuard{self: c.self.Addrs, peers: map[Key]*wgWanted{}, keys: map[string]Key{}, owner: map[Key]string{}, users: map[Key]string{}}
	if c.key != (Key{}) {
		w.owner[c.key] = c.self.Name
	}
	for _, peer := range c.peers {
		if slices.ContainsFunc(peer.PodCIDRs, func(cidr netip.Prefix) bool { return slices.Contains(c.allowedIPs[peer.Key], cidr.Masked()) }) {
			w.users[peer.Key] = peer.Name
		}
	}
	return w
}

// accept takes a peer, if it has a key that no older node has and that is not in use for another, and an address that
// is not in another node's podCIDR: packets to that would be encrypted themselves.
func (w *wireGuard) accept(peer Peer, decision *podCIDRs) {
	if w == nil || peer.Key == (Key{}) {
		return
	}
	end := underlay(peer.Addrs, netip.Addr.Is4)
	if !end.IsValid() || !underlay(w.self, netip.Addr.Is4).IsValid() {
		end = underlay(peer.Addrs, netip.Addr.Is6)
	}
	if !end.IsValid() || slices.Contains(w.self, end) || w.owner[peer.Key] != "" || w.taken(peer) != "" {
		return
	}
	if decision.inPods(peer.Name, end) {
		return
	}
	w.owner[peer.Key], w.keys[peer.Name] = peer.Name, peer.Key
	w.peers[peer.Key] = &wgWanted{wgPeer{endpoint: netip.AddrPortFrom(end, numbers.PortWireGuard)}, peer.Addrs}
}

// taken names another node for which the kernel uses the key of a peer; empty: none.
func (w *wireGuard) taken(peer Peer) string {
	if user := w.users[peer.Key]; user != peer.Name {
		return user
	}
	return ""
}

// addOwn takes a podCIDR of this node.
func (w *wireGuard) addOwn(cidr netip.Prefix) {
	if w != nil {
		w.addrs = append(w.addrs, cidr.Addr())
	}
}

// allow makes a podCIDR of a peer what its key stands for. A peer without a key has none.
func (w *wireGuard) allow(peer Peer, cidr netip.Prefix, enforce bool) {
	if w == nil {
		return
	}
	if enforce {
		w.encrypted = append(w.encrypted, cidr)
	}
	if p := w.peers[w.keys[peer.Name]]; p != nil {
		p.allowed = append(p.allowed, cidr)
		slices.SortFunc(p.allowed, comparePrefixes)
	}
}

// why says why a podCIDR of a peer is not reached by WireGuard; empty: it is.
func (w *wireGuard) why(peer Peer, cidr netip.Prefix) string {
	key, ok := w.keys[peer.Name]
	other := w.owner[peer.Key]
	switch {
	case ok && cidr.Contains(w.peers[key].endpoint.Addr()):
		return fmt.Sprintf("the address %s of node %s is in its own podCIDR", w.peers[key].endpoint.Addr(), peer.Name)
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

// overhead is what WireGuard adds to the packets to the farthest peer: 60 bytes over IPv4, 80 over IPv6.
func (w *wireGuard) overhead() int {
	six := !underlay(w.self, netip.Addr.Is4).IsValid()
	for _, p := range w.peers {
		six = six || p.endpoint.Addr().Is6()
	}
	if six {
		return 8 + 32 + 40
	}
	return 8 + 32 + 20
}
