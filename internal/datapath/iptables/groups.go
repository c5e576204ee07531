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

// addCounts adds a change to counts. What is not there any more is deleted.
func addCounts(counts, change map[elem]int) {
	for e, n := range change {
		if counts[e] += n; counts[e] <= 0 {
			delete(counts, e)
		}
	}
}

// changedGroups finds the groups that differ from those in the kernel, as they are in want, in order of their keys.
func changedGroups(want *service.Table, all []service.Change) map[group][]*service.Frontend {
	groups, names := map[group][]*service.Frontend{}, map[api.Name]bool{}
	for _, one := range all {
		for _, f := range []*service.Frontend{one.Old, one.New} {
			if f != nil {
				groups[groupOf(f)], names[f.Service.Name] = nil, true
			}
		}
	}
	for name := range names {
		entry := want.Entry(name)
		if entry == nil {
			continue
		}
		for _, f := range entry.Frontends {
			if some, differs := groups[groupOf(f)]; differs {
				groups[groupOf(f)] = append(some, f)
			}
		}
	}
	for _, some := range groups {
		slices.SortFunc(some, func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) })
	}
	return groups
}

// planChange plans the change of some groups, and returns by how much the counts of the helper's elements change.
func (d *Datapath) planChange(groups map[group][]*service.Frontend) (map[bool]*script, map[elem]int) {
	scripts, counts := map[bool]*script{}, map[elem]int{}
	sorted := sortedGroups(groups)
	for _, is4 := range families() {
		scripts[is4] = newScript()
		for _, g := range sorted {
			was, is := d.renderer.render(is4, d.groups[g]), d.renderer.render(is4, groups[g])
			for e, n := range was.elems {
				counts[e] -= n
			}
			for e, n := range is.elems {
				counts[e] += n
			}
			scripts[is4].change(was, is)
		}
	}
	return scripts, counts
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
