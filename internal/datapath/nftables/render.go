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
	reserved map[netip.Addr]int    // counts that change
	settings service.Settings
	newWays  []how
	oldWays  []how // in use by nobody after the writes
	learners learners
}

// render compares want with what is held. It changes nothing.
func (d *Datapath) render(want *service.Table, full bool) *rendering {
	r := &rendering{
		next: map[service.Key]*held{}, settings: want.Settings,
		hairpins: map[netip.Addr]int{}, reserved: map[netip.Addr]int{},
	}
	var p plan
	for _, c := range d.changes(want, full) {
		k := c.Key()
		was := d.state.at(k)
		is := d.state.hold(was, c.New)
		if !full || !was.equal(is) {
			r.next[k] = is
			p.frontend(k, was, is)
		}
		recount(r.hairpins, d.state.hairpins, c, localAddrs, full)
		recount(r.reserved, d.state.reserved, c, reservedAddrs, full)
	}
	if full {
		for a := range d.state.hairpins {
			r.hairpins[a] += 0
		}
		for a := range d.state.reserved {
			r.reserved[a] += 0
		}
	}
	p.members(hairpin, d.state.hairpins, r.hairpins, hairpinKey)
	p.members(reserved, d.state.reserved, r.reserved, netip.Addr.AsSlice)
	p.links(d.state.settings.PodInterfaces, want.Settings.PodInterfaces)
	p.prefixes(serviceCIDRs, d.state.settings.ServiceCIDRs, want.Settings.ServiceCIDRs)
	p.prefixes(pods, d.state.settings.Pods, want.Settings.Pods)
	p.prefixes(nodeportAddresses, d.state.settings.NodePorts, want.Settings.NodePorts)
	r.writes = p.writes()
	r.ways(d.state)
	r.learners = d.state.learners(r.next, full)
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

// recount counts the addresses that a change needs more or less often. After a full
// comparison the counts are of what is wanted; else they start from those held.
func recount(counts, held map[netip.Addr]int, c service.Change, of func(*service.Frontend) map[netip.Addr]bool, full bool) {
	count := func(f *service.Frontend, d int) {
		for a := range of(f) {
			if _, ok := counts[a]; !ok && !full {
				counts[a] = held[a]
			}
			counts[a] += d
		}
	}
	if !full {
		count(c.Old, -1)
	}
	count(c.New, +1)
}

// reservedAddrs returns the address that f reserves. f may be nil.
func reservedAddrs(f *service.Frontend) map[netip.Addr]bool {
	if f == nil || !f.Reserved {
		return nil
	}
	return map[netip.Addr]bool{f.Addr.Addr(): true}
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
