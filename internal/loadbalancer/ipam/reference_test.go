package ipam

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A slow is the obvious way to give addresses: it looks at every address and every Service,
// again and again. An Allocator must do the same.
type slow struct {
	pools      []*Pool
	reserved   []Range
	namespaces map[string]map[string]string
	services   map[api.Name]*Service // as they are now
	seen       map[api.Name]*Service // as they were at the last decide
	have       map[api.Name][]netip.Addr
	from       map[api.Name]string
}

func newSlow() *slow {
	return &slow{
		namespaces: map[string]map[string]string{}, services: map[api.Name]*Service{}, seen: map[api.Name]*Service{},
		have: map[api.Name][]netip.Addr{}, from: map[api.Name]string{},
	}
}

func (w *slow) byAge() (all []*Service) {
	for _, s := range w.services {
		all = append(all, s)
	}
	slices.SortFunc(all, compareAge)
	return all
}

func (w *slow) pool(name string) *Pool {
	for _, p := range w.pools {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (w *slow) owner(a netip.Addr) (owner *Pool) {
	for _, p := range w.pools {
		in := slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
		if in && (owner == nil || p.Created < owner.Created || p.Created == owner.Created && p.Name < owner.Name) {
			owner = p
		}
	}
	return owner
}

func (w *slow) isReserved(a netip.Addr) bool {
	return slices.ContainsFunc(w.reserved, func(r Range) bool { return r.Contains(a) })
}

func (w *slow) gives(p *Pool, a netip.Addr) bool {
	return w.owner(a) == p && !w.isReserved(a) && !(p.AvoidBuggyIPs && buggy(a))
}

// mayHave reports whether s may have an address besides those who have it.
func (w *slow) mayHave(s *Service, a netip.Addr) bool {
	for name, have := range w.have {
		o := w.seen[name]
		if name == s.Name || !slices.Contains(have, a) {
			continue
		}
		if s.SharingKey == "" || o.SharingKey != s.SharingKey || o.Backing != s.Backing {
			return false
		}
		if slices.ContainsFunc(s.Ports, func(p Port) bool { return slices.Contains(o.Ports, p) }) {
			return false
		}
	}
	return true
}

func (w *slow) inUse(a netip.Addr) bool {
	for _, have := range w.have {
		if slices.Contains(have, a) {
			return true
		}
	}
	return false
}

func (w *slow) decide() {
	for name := range w.seen {
		if s := w.services[name]; s == nil || !s.Wanted {
			delete(w.have, name)
			delete(w.from, name)
			delete(w.seen, name)
		}
	}
	var fresh []*Service
	for _, s := range w.byAge() {
		if s.Wanted && w.seen[s.Name] == nil {
			fresh = append(fresh, s)
		}
	}
	for name := range w.from {
		w.from[name] = w.origin(w.have[name], w.from[name])
	}
	for _, s := range fresh {
		w.adopt(s)
	}
	for _, s := range w.byAge() {
		if s.Wanted && !slices.Contains(fresh, s) {
			w.check(s)
		}
	}
	for again := true; again; {
		again = false
		for _, s := range w.byAge() {
			if s.Wanted && w.try(s) {
				again = true
				break
			}
		}
	}
}

func (w *slow) adopt(s *Service) {
	w.seen[s.Name] = s
	for _, a := range s.Assigned {
		p := w.owner(a)
		if !slices.Contains(s.missing(w.have[s.Name]), FamilyOf(a)) || s.AssignedFrom == "" && (p == nil || w.isReserved(a)) || !w.mayHave(s, a) {
			continue
		}
		w.have[s.Name] = s.sorted(append(w.have[s.Name], a))
	}
	if len(w.have[s.Name]) > 0 {
		w.from[s.Name] = w.origin(w.have[s.Name], s.AssignedFrom)
	}
}

func (w *slow) origin(addrs []netip.Addr, said string) string {
	var owners []string
	for _, a := range addrs {
		if p := w.owner(a); p != nil {
			owners = append(owners, p.Name)
		}
	}
	if len(owners) == 0 || slices.Contains(owners, said) {
		return said
	}
	return owners[0]
}

func (w *slow) check(s *Service) {
	was := w.seen[s.Name]
	w.seen[s.Name] = s
	if s.holdsLike(was) {
		return
	}
	w.have[s.Name] = slices.DeleteFunc(slices.Clone(w.have[s.Name]), func(a netip.Addr) bool {
		return !slices.Contains(s.Families, FamilyOf(a)) || !w.mayHave(s, a)
	})
	if w.have[s.Name] = s.sorted(w.have[s.Name]); len(w.have[s.Name]) == 0 {
		delete(w.have, s.Name)
		delete(w.from, s.Name)
	} else {
		w.from[s.Name] = w.origin(w.have[s.Name], w.from[s.Name])
	}
}

// try gives a Service what it lacks, if that is possible.
func (w *slow) try(s *Service) bool {
	have := w.have[s.Name]
	switch {
	case s.Refused != "":
		return false
	case len(s.Addrs) > 0:
		return !sameAddrs(have, s.Addrs) && w.tryAddrs(s)
	case s.Pool != "" && (len(have) == 0 || w.from[s.Name] != s.Pool):
		p := w.pool(s.Pool)
		return p != nil && p.serves(s, w.namespaces[s.Namespace]) && w.tryPools(s, []*Pool{p})
	case len(have) == 0:
		var from []*Pool
		for _, p := range w.pools {
			if p.AutoAssign && p.serves(s, w.namespaces[s.Namespace]) {
				from = append(from, p)
			}
		}
		slices.SortFunc(from, func(a, b *Pool) int {
			if a.rank() != b.rank() {
				return a.rank() - b.rank()
			}
			return compareNames(a.Name, b.Name)
		})
		return w.tryPools(s, from)
	}
	missing, p := s.missing(have), w.pool(w.from[s.Name])
	if len(missing) == 0 || p == nil {
		return false
	}
	a := w.free(s, p, missing[0])
	if a.IsValid() {
		w.have[s.Name] = s.sorted(append(slices.Clone(have), a))
	}
	return a.IsValid()
}

func compareNames(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func (w *slow) tryAddrs(s *Service) bool {
	if len(s.Addrs) > len(s.Families) || len(s.missing(s.Addrs)) != len(s.Families)-len(s.Addrs) || len(s.Addrs) < len(s.Families) && !s.PreferDual {
		return false
	}
	p := w.owner(s.Addrs[0])
	for _, a := range s.Addrs {
		kept := slices.Contains(w.have[s.Name], a)
		if p == nil || w.owner(a) != p || s.Pool != "" && s.Pool != p.Name || !p.serves(s, w.namespaces[s.Namespace]) || !kept && !w.gives(p, a) || !w.mayHave(s, a) {
			return false
		}
	}
	w.have[s.Name], w.from[s.Name] = s.sorted(s.Addrs), p.Name
	return true
}

func (w *slow) tryPools(s *Service, from []*Pool) bool {
	for _, enough := range []func([]netip.Addr) bool{
		func(got []netip.Addr) bool { return len(got) == len(s.Families) },
		func(got []netip.Addr) bool {
			return s.PreferDual && len(got) > 0 && FamilyOf(got[0]) == s.Families[0]
		},
		func(got []netip.Addr) bool { return s.PreferDual && len(got) > 0 },
	} {
		for _, p := range from {
			var got []netip.Addr
			for _, f := range s.Families {
				if a := w.free(s, p, f); a.IsValid() {
					got = append(got, a)
				}
			}
			if len(got) > 0 && enough(got) {
				w.have[s.Name], w.from[s.Name] = got, p.Name
				return true
			}
		}
	}
	return false
}

// free looks at every address of a pool: first for the lowest that can be shared, then for the
// first that nobody has.
func (w *slow) free(s *Service, p *Pool, f Family) (best netip.Addr) {
	if s.SharingKey != "" {
		for _, a := range everyAddr(p) {
			if FamilyOf(a) == f && w.gives(p, a) && w.inUse(a) && w.mayHave(s, a) && (!best.IsValid() || a.Less(best)) && !slices.Equal(w.have[s.Name], []netip.Addr{a}) {
				best = a
			}
		}
	}
	if best.IsValid() {
		return best
	}
	for _, a := range everyAddr(p) {
		if FamilyOf(a) == f && w.gives(p, a) && !w.inUse(a) {
			return a
		}
	}
	return netip.Addr{}
}

func everyAddr(p *Pool) (all []netip.Addr) {
	for _, r := range p.Ranges {
		for a := r.First; r.Contains(a); a = a.Next() {
			all = append(all, a)
		}
	}
	return all
}
