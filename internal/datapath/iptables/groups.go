package iptables

import (
	"maps"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A group is one port of one Service, whose frontends share chains.
type group struct {
	name  api.PortName
	proto api.Proto
}

func groupOf(f *service.Frontend) group { return group{f.Service, f.Proto} }

// A member is what one group has in one family.
type member struct {
	fronts []*service.Frontend // sorted by key
	wide   wide                // of its Service
}

// counts are how many frontends need an element of the helper, and rules a chain for ports, by family (IPv4?).
type counts struct {
	elems map[elem]int
	leads map[bool]map[lead]int
}

func newCounts() counts {
	return counts{map[elem]int{}, map[bool]map[lead]int{true: {}, false: {}}}
}

// add counts a fragment so many times.
func (c counts) add(is4 bool, one *fragment, times int) {
	for e, n := range one.elems {
		c.elems[e] += n * times
	}
	for l, n := range one.leads {
		c.leads[is4][l] += n * times
	}
}

// addCounts adds a change to counts. What is not there any more is deleted.
func addCounts[K comparable](counts, change map[K]int) {
	for k, n := range change {
		if counts[k] += n; counts[k] <= 0 {
			delete(counts, k)
		}
	}
}

// A change is the groups that differ between two tables, as they are in the second, and at which addresses their
// Services are wide in both.
type change struct {
	groups  map[group][]*service.Frontend
	was, is map[api.Name]wide
}

// changed finds the groups that differ from those in the kernel. Of a Service that has become wide at an
// address, or is so no longer, they are all.
func (d *Datapath) changed(want *service.Table, all []service.Change) *change {
	c := &change{map[group][]*service.Frontend{}, map[api.Name]wide{}, map[api.Name]wide{}}
	names := map[api.Name]bool{}
	for _, one := range all {
		for _, f := range []*service.Frontend{one.Old, one.New} {
			if f != nil {
				c.groups[groupOf(f)], names[f.Service.Name] = nil, true
			}
		}
	}
	for name := range names {
		was, is := frontendsOf(d.table, name), frontendsOf(want, name)
		c.was[name], c.is[name] = wideOf(was), wideOf(is)
		if !maps.Equal(c.was[name], c.is[name]) {
			for _, f := range slices.Concat(was, is) {
				c.groups[groupOf(f)] = nil
			}
		}
		for _, f := range is {
			if some, differs := c.groups[groupOf(f)]; differs {
				c.groups[groupOf(f)] = append(some, f)
			}
		}
	}
	for _, some := range c.groups {
		slices.SortFunc(some, func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) })
	}
	return c
}

// planChange plans the change, and returns by how much the counts change.
func (d *Datapath) planChange(c *change) (map[bool]*script, counts) {
	scripts, differ := map[bool]*script{}, newCounts()
	groups := sortedGroups(c.groups)
	for _, is4 := range families() {
		var was, is []*fragment
		for _, g := range groups {
			old, next := d.renderer.renderChange(is4, member{ofFamilyOnly(d.groups[g], is4), c.was[g.name.Name]},
				member{ofFamilyOnly(c.groups[g], is4), c.is[g.name.Name]})
			differ.add(is4, old, -1)
			differ.add(is4, next, 1)
			was, is = append(was, old), append(is, next)
		}
		scripts[is4] = newScript()
		gone := scripts[is4].changeLeads(d.leads[is4], differ.leads[is4])
		for i := range was {
			scripts[is4].change(was[i], is[i], gone)
		}
	}
	return scripts, differ
}

// frontendsOf are the frontends of a Service in a table.
func frontendsOf(t *service.Table, name api.Name) []*service.Frontend {
	if e := t.Entry(name); e != nil {
		return e.Frontends
	}
	return nil
}

func ofFamilyOnly(all []*service.Frontend, is4 bool) (some []*service.Frontend) {
	for _, f := range all {
		if f.Addr.Addr().Is4() == is4 {
			some = append(some, f)
		}
	}
	return some
}

func sortedGroups(all map[group][]*service.Frontend) []group {
	return slices.SortedFunc(maps.Keys(all), func(a, b group) int {
		if c := a.name.Name.Compare(b.name.Name); c != 0 {
			return c
		}
		if a.name.Port != b.name.Port {
			if a.name.Port < b.name.Port {
				return -1
			}
			return 1
		}
		return int(a.proto) - int(b.proto)
	})
}
