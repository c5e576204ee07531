package nftables

import (
	"maps"
	"net/netip"

	"github.com/fairway-net/fairway/internal/service"
)

// rendering is what one Sync will do.
type rendering struct {
	writes   []write
	next     map[service.Key]*held // frontends that change
	hairpins map[netip.Addr]int    // counts that change
	settings service.Settings
	newWays  []how
	oldWays  []how // in use by nobody after the writes
}

// render compares want with what is held. It changes nothing.
func (d *Datapath) render(want *service.Table, full bool) *rendering {
	r := &rendering{next: map[service.Key]*held{}, hairpins: map[netip.Addr]int{}, settings: want.Settings}
	var p plan
	for _, c := range d.changes(want, full) {
		k := c.Key()
		was := d.state.at(k)
		is := hold(was, c.New)
		if !full || !was.equal(is) {
			r.next[k] = is
			p.frontend(k, was, is)
		}
		if full {
			countLocal(r.hairpins, c.New, +1)
			continue
		}
		for _, f := range []*service.Frontend{c.Old, c.New} {
			for a := range localAddrs(f) {
				if _, ok := r.hairpins[a]; !ok {
					r.hairpins[a] = d.state.hairpins[a]
				}
			}
		}
		countLocal(r.hairpins, c.Old, -1)
		countLocal(r.hairpins, c.New, +1)
	}
	if full {
		for a := range d.state.hairpins {
			r.hairpins[a] += 0
		}
	}
	p.hairpins(d.state.hairpins, r.hairpins)
	p.prefixes(pods, d.state.settings.Pods, want.Settings.Pods)
	p.prefixes(nodeportAddresses, d.state.settings.NodePorts, want.Settings.NodePorts)
	r.writes = p.writes()
	r.ways(d.state)
	return r
}

// changes returns the frontends that may have to change: those that differ from the
// last table or, if what the kernel holds was just read, all.
func (d *Datapath) changes(want *service.Table, full bool) []service.Change {
	if !full {
		return service.Diff(d.table, want)
	}
	var all []service.Change
	wanted := map[service.Key]bool{}
	for f := range want.Frontends() {
		wanted[f.Key()] = true
		all = append(all, service.Change{New: f})
	}
	for k := range d.state.frontends {
		if !wanted[k] {
			all = append(all, service.Change{Old: &service.Frontend{Addr: k.Addr, Proto: k.Proto}})
		}
	}
	return all
}

// spareWays is how many chains nobody uses may stay: the counts of endpoints of
// Services that are rolling out come and go.
const spareWays = 64

// ways finds the chains that must be added, and those that may go.
func (r *rendering) ways(s *state) {
	uses := maps.Clone(s.uses)
	for k, is := range r.next {
		s.at(k).count(uses, -1)
		is.count(uses, +1)
	}
	for h, n := range uses {
		if n > 0 && !s.chains[h] {
			r.newWays = append(r.newWays, h)
		}
	}
	for h := range s.chains {
		if uses[h] <= 0 {
			r.oldWays = append(r.oldWays, h)
		}
	}
	if len(r.oldWays) <= spareWays {
		r.oldWays = nil
	}
}

// countLocal adds d for each address of f's endpoints on this node.
func countLocal(counts map[netip.Addr]int, f *service.Frontend, d int) {
	for a := range localAddrs(f) {
		counts[a] += d
	}
}

// localAddrs returns the addresses of f's endpoints on this node. f may be nil.
func localAddrs(f *service.Frontend) map[netip.Addr]bool {
	var local map[netip.Addr]bool
	if f == nil {
		return nil
	}
	for _, r := range [...]*service.Route{f.Inside, f.Outside} {
		if r == nil {
			continue
		}
		for _, e := range r.Endpoints {
			if !e.Local {
				continue
			}
			if local == nil {
				local = map[netip.Addr]bool{}
			}
			local[e.Addr.Addr()] = true
		}
	}
	return local
}
