package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/service"
)

// A group is one port of one Service. Its frontends share chains, so they are rendered together.
type group struct {
	name  api.PortName
	proto api.Proto
}

func groupOf(f *service.Frontend) group { return group{f.Service, f.Proto} }

// sortedGroups returns the groups in a fixed order.
func sortedGroups(all map[group][]*service.Frontend) []group {
	return slices.SortedFunc(maps.Keys(all), func(a, b group) int {
		return cmp.Or(a.name.Name.Compare(b.name.Name), strings.Compare(a.name.Port, b.name.Port), cmp.Compare(a.proto, b.proto))
	})
}

// addCounts adds a change to counts, and deletes counts that become 0.
func addCounts(counts, change map[elem]int) {
	for e, n := range change {
		if counts[e] += n; counts[e] <= 0 {
			delete(counts, e)
		}
	}
}

// changedGroups returns the groups of changed frontends, with all their frontends in want.
func changedGroups(want *service.Table, changed []service.Change) map[group][]*service.Frontend {
	groups, names := map[group][]*service.Frontend{}, map[api.Name]bool{}
	for _, change := range changed {
		for _, f := range []*service.Frontend{change.Old, change.New} {
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
			if fronts, differs := groups[groupOf(f)]; differs {
				groups[groupOf(f)] = append(fronts, f)
			}
		}
	}
	for _, fronts := range groups {
		slices.SortFunc(fronts, func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) })
	}
	return groups
}

// planChange plans the change of some groups. It returns a script for each family, and by how much the number of users
// of each of the helper's elements changes.
func (d *Datapath) planChange(groups map[group][]*service.Frontend) (map[bool]*script, map[elem]int) {
	scripts, counts := map[bool]*script{}, map[elem]int{}
	keys := sortedGroups(groups)
	for _, is4 := range read.Families() {
		scripts[is4] = newScript()
		for _, g := range keys {
			old, next := d.renderer.render(is4, d.groups[g]), d.renderer.render(is4, groups[g])
			for e, n := range old.elems {
				counts[e] -= n
			}
			for e, n := range next.elems {
				counts[e] += n
			}
			scripts[is4].change(old, next)
		}
	}
	return scripts, counts
}

// planAll compares all groups with the kernel's rules. It returns a script for each family, and how many frontends
// use each of the helper's elements.
func (d *Datapath) planAll(groups map[group][]*service.Frontend, states map[bool]*read.State) (map[bool]*script, map[elem]int) {
	scripts, wanted := map[bool]*script{}, map[elem]int{}
	for is4, state := range states {
		l, entries := d.renderAll(groups, is4, wanted)
		scripts[is4] = newScript()
		scripts[is4].changeAll(state, l, entries)
	}
	return scripts, wanted
}

// renderAll renders all groups in one family, and adds the helper's elements to wanted.
func (d *Datapath) renderAll(groups map[group][]*service.Frontend, is4 bool, wanted map[elem]int) (*layout, map[chain][]string) {
	l, entries := d.renderer.layout(is4, d.cfg.Mark), map[chain][]string{}
	for _, g := range sortedGroups(groups) {
		one := d.renderer.render(is4, groups[g])
		maps.Copy(l.chains, one.chains)
		for c, rules := range one.entries {
			entries[c] = append(entries[c], rules...)
		}
		addCounts(wanted, one.elems)
	}
	return l, entries
}
