package layer2

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// formerSilent is how long a node that is declared dead still gets the packets of its connections: a
// speaker may only be late, and a connection that is reset does not come back. A variable for tests.
var formerSilent = 1500 * time.Millisecond

// maxFormers is how many owners of an address are remembered, and so how often a packet is passed on.
const maxFormers = 5

// A formers knows who had the addresses, one after the other: what is in the middle of a connection that a node does not
// know is sent to the owner before it, and by that to the one before.
type formers struct {
	last    map[netip.Addr][]string // whose an address was by this node's decisions: each once, the last one first
	granted map[netip.Addr]bool     // this node holds it
	silent  map[string]time.Time    // nodes that are dead, since when
	gone    map[string]bool         // those of them that have been so for too long
	spoke   map[string]bool         // nodes whose speakers were heard once; nil: nothing is known
}

func newFormers() formers {
	return formers{last: map[netip.Addr][]string{}, granted: map[netip.Addr]bool{}, silent: map[string]time.Time{}}
}

// owned notes whose an address is. Of one that is new the next best node is likely to have been the owner before.
func (f *formers) owned(d *announce.Decision, owner string, dead map[string]bool) (changed bool) {
	was := f.last[d.Addr]
	if len(was) > 0 && was[0] == owner {
		return false
	}
	now := []string{owner}
	for _, node := range was {
		if node != owner && len(now) < maxFormers {
			now = append(now, node)
		}
	}
	if len(was) == 0 {
		out := map[string]bool{owner: true}
		maps.Copy(out, dead)
		if next, ok := d.Owner(out); ok {
			now = append(now, next.Node)
		}
	}
	f.last[d.Addr] = now
	return true
}

// forget forgets who had the addresses: the node takes no part any more. What routers lead to several nodes goes on.
func (f *formers) forget() {
	clear(f.last)
	clear(f.granted)
}

// enter and leave note addresses that this node holds from now on, and does not any more.
func (f *formers) enter(addrs []netip.Addr) {
	for _, a := range addrs {
		f.granted[a] = true
	}
}

func (f *formers) leave(addrs []netip.Addr) {
	for _, a := range addrs {
		delete(f.granted, a)
	}
}

// noteDead notes which nodes are dead now, and reports whether that changes who gets packets.
func (f *formers) noteDead(now time.Time, patience time.Duration, dead map[string]bool) (changed bool) {
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

// next returns which node gets what this one does not know. Who holds the address sends to the last of the others. One of
// them sends to the next in the list, which is the same on all nodes, so that packets do not go round; and one that is only
// about to have the address not back to the second, which is likely to hold it still.
func (f *formers) next(self string, a netip.Addr) string {
	list := f.last[a]
	if !f.granted[a] {
		i := slices.Index(list, self)
		if i < 0 {
			return ""
		}
		list = list[min(max(i+1, 2), len(list)):]
	}
	for _, node := range list {
		if node != self && !f.gone[node] {
			return node
		}
	}
	return ""
}

// passed returns where packets to an address go that routers lead to several nodes, of which those with such connections are
// carriers: one after the other, in the order of their names, so that none goes round. first gets what comes from a router,
// and next what another node has passed on. at returns a node's address, if packets can go there.
func (f *formers) passed(self string, carriers []string, at func(node string) netip.Addr) (first, next netip.Addr) {
	var list []string
	for _, node := range carriers {
		if f.spoke[node] && !f.gone[node] && len(list) < maxFormers && !slices.Contains(list, node) {
			list = append(list, node)
		}
	}
	slices.Sort(list)
	for _, node := range list {
		if node == self {
			continue
		}
		to := at(node)
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

// wanted returns where packets go. at returns a node's address of the family of another.
func (f *formers) wanted(self string, decisions map[netip.Addr]*announce.Decision, at func(node string, like netip.Addr) netip.Addr) (want fence.Elsewhere) {
	want.Former = map[netip.Addr]netip.Addr{}
	if f.spoke != nil {
		want.First, want.Next = map[netip.Addr]netip.Addr{}, map[netip.Addr]netip.Addr{}
	}
	note := func(all map[netip.Addr]netip.Addr, a, to netip.Addr) {
		if to.IsValid() {
			all[a] = to
		}
	}
	for a, d := range decisions {
		switch {
		case len(d.Carriers) == 0:
			if node := f.next(self, a); node != "" {
				note(want.Former, a, at(node, a))
			}
		case f.spoke != nil:
			first, next := f.passed(self, slices.Concat(f.last[a], d.Carriers), func(node string) netip.Addr { return at(node, a) })
			note(want.First, a, first)
			note(want.Next, a, next)
		}
	}
	return want
}

// noteSpeaking notes the nodes whose speakers are not silent: one without a speaker passes nothing on. It reports whether there are new ones.
func (f *formers) noteSpeaking(nodes []string, out map[string]bool) (changed bool) {
	if f.spoke == nil {
		f.spoke = map[string]bool{}
	}
	for _, node := range nodes {
		if !out[node] && !f.spoke[node] {
			f.spoke[node], changed = true, true
		}
	}
	return changed
}

// former tells the fence who may know connections that this node does not. It has an effect with the next Hold.
func (s *Speaker) former() (changed bool) {
	near := map[netip.Addr]bool{} // asked once for each node, not for each address
	want := s.formers.wanted(s.cfg.Node, s.decisions, func(node string, like netip.Addr) netip.Addr {
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
	if want.Peers = s.neighbours.macs; !s.neighbours.known {
		want.First, want.Next, want.Peers = nil, nil, nil // what the process before left stays until then
	}
	if reflect.DeepEqual(want, s.formerly) {
		return false
	}
	s.formerly = want
	s.fence.Elsewhere(want)
	return true
}

// patience is how long a dead node gets the packets of its connections.
func (s *Speaker) patience() time.Duration {
	if s.cfg.Stateless {
		return 0
	}
	return formerSilent
}

// onLink reports whether an address is on a network of this node: through a router packets would come back.
func onLink(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) == 1 && routes[0].Gw == nil
}

// updateFormers notes, with every beat, which nodes have fallen silent or are back, and tells the fence if that, or whose an
// address is, changes where packets go.
func (s *Speaker) updateFormers(ctx context.Context, v claimView, moved bool) {
	changed := s.formers.noteDead(time.Now(), s.patience(), v.dead)
	changed = s.formers.noteSpeaking(s.nodes, v.out) || changed || moved || s.carriersChanged
	s.carriersChanged = false
	maps.DeleteFunc(s.formers.last, func(a netip.Addr, _ []string) bool { return s.decisions[a] == nil })
	if changed {
		s.passOn(ctx)
	}
}

// passOn lets the kernel pass packets on as is known now.
func (s *Speaker) passOn(ctx context.Context) {
	if !s.former() {
		return
	}
	if err := s.fence.Hold(ctx, nil, nil); err != nil {
		s.mend(ctx, err)
		return
	}
	if s.formerly.First != nil {
		s.passes()
	}
}
