package speaker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/announce"
)

// formerSilent is how long a node that is declared dead still gets the packets of its connections: a
// speaker may only be late, and a connection that is reset does not come back. A variable for tests.
var formerSilent = 1500 * time.Millisecond

// A formers knows who had the addresses that this node holds before it: what is in the middle of a
// connection that this node does not know is sent there.
type formers struct {
	others map[netip.Addr]string // whose an address was last, as far as this node knows, but for itself
	before map[netip.Addr]string // of those that are held
	silent map[string]time.Time  // nodes that are dead, since when
}

func newFormers() formers {
	return formers{others: map[netip.Addr]string{}, before: map[netip.Addr]string{}, silent: map[string]time.Time{}}
}

// enter notes addresses that this node holds from now on. Where it knew of no other owner, the next
// best node is likely to have been it.
func (f *formers) enter(self string, addrs []netip.Addr, decisions map[netip.Addr]*announce.Decision, dead map[string]bool) {
	for _, a := range addrs {
		node := f.others[a]
		if d := decisions[a]; node == "" && d != nil {
			out := maps.Clone(dead)
			if out == nil {
				out = map[string]bool{}
			}
			out[self] = true
			c, _ := d.Owner(out)
			node = c.Node
		}
		if node != "" {
			f.before[a] = node
		}
	}
}

// leave notes addresses that this node does not hold any more.
func (f *formers) leave(addrs []netip.Addr) {
	for _, a := range addrs {
		delete(f.before, a)
	}
}

// hear notes which nodes are dead now.
func (f *formers) hear(now time.Time, dead map[string]bool) {
	maps.DeleteFunc(f.silent, func(node string, _ time.Time) bool { return !dead[node] })
	for node := range dead {
		if f.silent[node].IsZero() {
			f.silent[node] = now
		}
	}
}

// wanted returns where packets go, by address. at returns a node's address of the family of another.
func (f *formers) wanted(now time.Time, patience time.Duration, at func(node string, like netip.Addr) netip.Addr) map[netip.Addr]netip.Addr {
	want := make(map[netip.Addr]netip.Addr, len(f.before))
	for a, node := range f.before {
		if since, silent := f.silent[node]; silent && now.Sub(since) >= patience {
			continue
		}
		if to := at(node, a); to.IsValid() {
			want[a] = to
		}
	}
	return want
}

// former tells the fence who had the addresses before. It has an effect with the next Hold.
func (s *Speaker) former() (changed bool) {
	near := map[netip.Addr]bool{} // asked once for each node, not for each address
	want := s.formers.wanted(time.Now(), s.patience(), func(node string, like netip.Addr) netip.Addr {
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
	if maps.Equal(want, s.formerly) {
		return false
	}
	s.formerly = want
	s.fence.Former(want)
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

// heardFormers looks, with every beat, whether owners of before have fallen silent or are back.
func (s *Speaker) heardFormers(ctx context.Context, dead map[string]bool) {
	was := len(s.formers.silent)
	s.formers.hear(time.Now(), dead)
	if was+len(s.formers.silent) == 0 || len(s.formers.before) == 0 || !s.former() {
		return
	}
	if err := s.fence.Hold(ctx, nil, nil); err != nil {
		s.mend(ctx, err)
	}
}
