package layer2

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// deadPatience is how long a node that is declared dead still gets the packets of its connections. Its speaker may only
// be late, and a reset ends a connection for good. A variable for tests.
var deadPatience = 1500 * time.Millisecond

// maxCarriers is how many nodes may pass on a packet to an address that routers lead to several nodes.
const maxCarriers = 5

// A forwarding knows which node gets a packet in the middle of a TCP connection that this node does not know:
//
//	address of layer 2:  holder ─→ the owner before it
//	address by BGP:      first carrier ─→ next carrier ─→ … in the order of their names
//
// An ICMP error about a packet of an unknown connection goes the same way for an address of layer 2. For an address by
// BGP it goes to all nodes, because a router may send all of its errors to one node (errorTargets).
type forwarding struct {
	owners   map[netip.Addr]ownerPair
	held     map[netip.Addr]bool  // this node holds the address
	silent   map[string]time.Time // dead nodes, and when they were declared dead
	gone     map[string]bool      // nodes that have been dead for longer than the patience
	speaking map[string]bool      // nodes that were heard at least once; nil: unknown

	neighbours      *neighbours
	written         fence.Forwarding // the fence has these targets
	carriersChanged bool             // since the last heartbeat
	ready           chan struct{}    // closed by setReady
	setReady        func()
}

// An ownerPair is the owner of an address by this node's own decisions, and the owner before; empty: unknown.
type ownerPair struct{ owner, previous string }

// other returns the node of the pair that is not self.
func (p ownerPair) other(self string) string {
	if p.owner == self {
		return p.previous
	}
	return p.owner
}

func newForwarding(log *slog.Logger) forwarding {
	ready := make(chan struct{})
	return forwarding{
		owners: map[netip.Addr]ownerPair{}, held: map[netip.Addr]bool{}, silent: map[string]time.Time{},
		neighbours: newNeighbours(log), ready: ready, setReady: sync.OnceFunc(func() { close(ready) }),
	}
}

// setOwner records the owner of an address. For a new address it assumes that the second-best candidate was the
// previous owner.
func (f *forwarding) setOwner(d *announce.Decision, owner string, dead map[string]bool) (changed bool) {
	last, known := f.owners[d.Addr]
	if last.owner == owner {
		return false
	}
	now := ownerPair{owner, last.owner}
	if !known {
		out := map[string]bool{owner: true}
		maps.Copy(out, dead)
		second, _ := d.Owner(out)
		now.previous = second.Node
	}
	f.owners[d.Addr] = now
	return true
}

// forget forgets the owners at the speaker's end. The targets of addresses by BGP stay.
func (f *forwarding) forget() {
	clear(f.owners)
	clear(f.held)
}

// hold records addresses that this node holds from now on.
func (f *forwarding) hold(addrs []netip.Addr) {
	for _, a := range addrs {
		f.held[a] = true
	}
}

// release records addresses that this node does not hold any more.
func (f *forwarding) release(addrs []netip.Addr) {
	for _, a := range addrs {
		delete(f.held, a)
	}
}

// noteDead records which nodes are dead now, and reports whether that changes a target.
func (f *forwarding) noteDead(now time.Time, patience time.Duration, dead map[string]bool) (changed bool) {
	maps.DeleteFunc(f.silent, func(node string, _ time.Time) bool { return !dead[node] })
	gone := map[string]bool{}
	for node := range dead {
		if f.silent[node].IsZero() {
			f.silent[node] = now
		}
		if now.Sub(f.silent[node]) >= patience {
			gone[node] = true
		}
	}
	changed = !maps.Equal(gone, f.gone)
	f.gone = gone
	return changed
}

// noteSpeaking records the nodes with a speaker that is heard, and reports whether one is new. A node without a speaker
// passes nothing on.
func (f *forwarding) noteSpeaking(nodes []string, out map[string]bool) (changed bool) {
	if f.speaking == nil {
		f.speaking = map[string]bool{}
	}
	for _, node := range nodes {
		if !out[node] && !f.speaking[node] {
			f.speaking[node], changed = true, true
		}
	}
	return changed
}

// target returns the node that gets a layer-2 address's packets of unknown connections; empty: this node answers them
// itself. Only the holder forwards, so a packet makes one hop. If the next owner is decided already, the holder
// forwards to the next owner, which was likely the owner before.
func (f *forwarding) target(self string, a netip.Addr) string {
	if node := f.owners[a].other(self); f.held[a] && !f.gone[node] {
		return node
	}
	return ""
}

// carrierTargets returns the targets for an address that routers lead to several nodes. first gets a packet from a
// router, next gets a packet that another node has passed on. Packets visit the carriers in the order of their names,
// so no packet visits one twice. addrOf returns the address of a node; the zero Addr: packets cannot go there.
func (f *forwarding) carrierTargets(self string, carriers []string, addrOf func(node string) netip.Addr) (first, next netip.Addr) {
	var list []string
	for _, node := range carriers {
		if f.speaking[node] && !f.gone[node] && len(list) < maxCarriers && !slices.Contains(list, node) {
			list = append(list, node)
		}
	}
	slices.Sort(list)
	for _, node := range list {
		if node == self {
			continue
		}
		to := addrOf(node)
		if !to.IsValid() {
			continue
		}
		if !first.IsValid() {
			first = to
		}
		if node > self {
			return first, to
		}
	}
	return first, netip.Addr{}
}

// targets returns the targets of all addresses. addrOf returns a node's address of the same family as the second
// argument.
func (f *forwarding) targets(self string, decisions map[netip.Addr]*announce.Decision, addrOf func(node string, like netip.Addr) netip.Addr) (want fence.Forwarding) {
	want.Previous = map[netip.Addr]netip.Addr{}
	if f.speaking != nil {
		want.First, want.Next = map[netip.Addr]netip.Addr{}, map[netip.Addr]netip.Addr{}
	}
	add := func(all map[netip.Addr]netip.Addr, a, to netip.Addr) {
		if to.IsValid() {
			all[a] = to
		}
	}
	for a, d := range decisions {
		switch {
		case len(d.Carriers) == 0:
			if node := f.target(self, a); node != "" {
				add(want.Previous, a, addrOf(node, a))
			}
		case f.speaking != nil:
			pair := f.owners[a]
			carriers := slices.Concat([]string{pair.owner, pair.previous}, d.Carriers)
			first, next := f.carrierTargets(self, carriers, func(node string) netip.Addr { return addrOf(node, a) })
			add(want.First, a, first)
			add(want.Next, a, next)
		}
	}
	return want
}

// ForwardingReady is closed when the kernel can forward packets of connections that routers lead to this node and that
// other nodes know.
func (s *Speaker) ForwardingReady() <-chan struct{} { return s.forwarding.ready }

// setForwarding gives the targets to the fence, which writes them with the next Hold.
func (s *Speaker) setForwarding() (changed bool) {
	near := map[netip.Addr]bool{} // one route lookup for each node, not for each address
	want := s.forwarding.targets(s.cfg.Node, s.decisions, func(node string, like netip.Addr) netip.Addr {
		i := slices.IndexFunc(s.addrs[node], func(a netip.Addr) bool { return a.Is4() == like.Is4() })
		if i < 0 {
			return netip.Addr{}
		}
		to := s.addrs[node][i]
		if _, known := near[to]; !known {
			near[to] = onLink(to)
		}
		if !near[to] {
			return netip.Addr{}
		}
		return to
	})
	if want.Peers = s.forwarding.neighbours.macs; !s.forwarding.neighbours.known {
		want.First, want.Next, want.Peers = nil, nil, nil // keep the elements of the process before
	}
	if len(want.First) > 0 {
		want.Errors = s.errorTargets()
	}
	if reflect.DeepEqual(want, s.forwarding.written) {
		return false
	}
	s.forwarding.written = want
	s.fence.SetForwarding(want)
	return true
}

// patience returns how long a dead node still gets the packets of its connections.
func (s *Speaker) patience() time.Duration {
	if s.cfg.Stateless {
		return 0
	}
	return deadPatience
}

// onLink reports whether an address is on a network of this node. A router would send the packets back.
func onLink(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) == 1 && routes[0].Gw == nil
}

// updateForwarding runs at every heartbeat. It writes the targets if a node fell silent or came back, or if an owner
// changed.
func (s *Speaker) updateForwarding(ctx context.Context, v claimView, ownersChanged bool) {
	f := &s.forwarding
	changed := f.noteDead(time.Now(), s.patience(), v.dead)
	changed = f.noteSpeaking(s.nodes, v.out) || changed || ownersChanged || f.carriersChanged
	f.carriersChanged = false
	maps.DeleteFunc(f.owners, func(a netip.Addr, _ ownerPair) bool { return s.decisions[a] == nil })
	if changed {
		s.writeForwarding(ctx)
	}
}

// writeForwarding writes the targets into the kernel now, if they have changed.
func (s *Speaker) writeForwarding(ctx context.Context) {
	if !s.setForwarding() {
		return
	}
	if err := s.fence.Hold(ctx, nil, nil); err != nil {
		s.reloadFence(ctx, err)
		return
	}
	if s.forwarding.written.First != nil {
		s.forwarding.setReady()
	}
}
