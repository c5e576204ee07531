package networkpolicy

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
)

// A View is the number of the blocks of one namespace's NetworkPolicies for one direction and family. Its low 8 bits are
// zero: the kernel's program adds the length of a prefix. No class and no rule has the same number.
type View uint32

// Coarse is in the number of a View with few lengths: every eighth (IPv6: every sixteenth). Other views have every
// fourth. A prefix of a length between is several elements.
const Coarse View = 1 << 8

// viewBit is in every View, in no Class, and ruleBit is in no View.
const (
	viewBit  View = 1 << 30
	viewBits View = 1<<20 - 1
)

// maxCoarse is the largest number of elements that a view may have more because it is coarse.
const maxCoarse = 256

// A ViewPrefix is a prefix in a View.
type ViewPrefix struct {
	View   View
	Prefix netip.Prefix
}

// A blockView is the blocks of a namespace for one direction, as the table has them.
type blockView struct {
	number View // without Coarse
	sets   map[string]*blockSet
	plan   *blockPlan
}

// usedIn returns the policies of a namespace that have rules for pods of this node.
func (s *namespaceState) usedIn(d Direction) (all []*compiledPolicy) {
	for _, p := range s.inOrder() {
		if p.addrsByDirection[d] > 0 && p.listsBlocks[d] && !p.overPeers {
			all = append(all, p)
		}
	}
	return all
}

// A viewKey names a View.
type viewKey struct {
	space *namespaceState
	d     Direction
}

// countViews finds the costs of the blocks of the namespaces whose policies changed.
func (c *Compiler) countViews() {
	for v := range c.dirtyViews {
		v.space.blockCosts[v.d] = countBlocks(v.space.usedIn(v.d), v.d)
		v.space.costs = nil
	}
}

// updateViews writes the changed views to the table, without policies that exceed a limit.
func (c *Compiler) updateViews() {
	for v := range c.dirtyViews {
		within := slices.DeleteFunc(v.space.usedIn(v.d), func(p *compiledPolicy) bool { return p.overGrants })
		c.setView(v, planBlocks(within, v.d))
	}
	clear(c.dirtyViews)
}

// setView makes the table have a plan, and gives the classes to the profiles of the namespace.
func (c *Compiler) setView(key viewKey, plan *blockPlan) {
	v := key.space.views[key.d]
	if v == nil && len(plan.prefixes) == 0 {
		c.forget(key.space)
		return
	}
	if v == nil {
		v = &blockView{number: c.newView(key), plan: planBlocks(nil, key.d)}
		key.space.views[key.d], c.views[v.number] = v, true
	}
	old, sets := v.plan, v.sets
	v.plan, v.sets = plan, plan.sets
	for k, s := range plan.sets {
		if had := sets[k]; had != nil {
			s.number = had.number
		} else {
			s.number = c.number([]string{fmt.Sprint("blocks|", key.space.name, "|", key.d, "|"), k}, 0)
			c.classByNumber[s.number] = &class{}
		}
	}
	changed := false
	for p, s := range plan.prefixes {
		changed = c.setPrefix(ViewPrefix{v.number | plan.coarse[family(p.Addr())], p}, s.number) || changed
	}
	for p := range old.prefixes {
		i := family(p.Addr())
		if plan.prefixes[p] == nil || plan.coarse[i] != old.coarse[i] {
			changed = c.setPrefix(ViewPrefix{v.number | old.coarse[i], p}, 0) || changed
		}
	}
	c.changes.Revoked = c.changes.Revoked || changed && len(plan.prefixes) > 0
	if len(plan.prefixes) == 0 {
		delete(c.views, v.number)
		key.space.views[key.d] = nil
	}
	for _, p := range c.profiles[key.d] {
		if p.space == key.space {
			c.grantBlocks(p)
			for at := range p.users {
				c.setViewOf(key.d, at)
			}
		}
	}
	for k, s := range sets {
		if plan.sets[k] == nil {
			delete(c.classByNumber, s.number)
		}
	}
	c.forget(key.space)
}

func (c *Compiler) setPrefix(key ViewPrefix, now Class) (changed bool) {
	was := c.table.Prefixes[key]
	if was == now {
		return false
	}
	if c.table.Prefixes[key] = now; now == 0 {
		delete(c.table.Prefixes, key)
	}
	note(c.changes.Prefixes, key, was, now, equalValues)
	return true
}

// newView derives a number from the namespace and the direction. No other view has the number.
func (c *Compiler) newView(key viewKey) View {
	h := fnv.New64a()
	fmt.Fprint(h, key.space.name, " ", key.d)
	for n := h.Sum64(); ; n++ {
		if v := viewBit | View(n^n>>32)&viewBits<<9; !c.views[v] {
			return v
		}
	}
}

// grantBlocks computes the segments of a profile for the classes of its namespace's view.
func (c *Compiler) grantBlocks(p *profile) {
	now := map[Class][]int{}
	if v := p.view(); v != nil {
		for _, i := range p.blockRules {
			for _, s := range v.plan.byRule[p.rules[i].id] {
				now[s.number] = append(now[s.number], i)
			}
		}
	}
	set := func(k Class, s []Segment) {
		p.set(k, s)
		for at := range p.users {
			c.grant(p.direction, Target{at.addr, k}, s)
		}
	}
	for k := range p.blockClasses {
		if now[k] == nil {
			set(k, nil)
		}
	}
	clear(p.blockClasses)
	for k, rules := range now {
		p.blockClasses[k] = true
		if s := p.segments(rules); !slices.Equal(s, p.grants[k]) {
			set(k, s)
		}
	}
}

// view returns the view that the pods of a profile have, or nil.
func (p *profile) view() *blockView {
	if p.space == nil || len(p.blockRules) == 0 {
		return nil
	}
	return p.space.views[p.direction]
}

// setViewOf records the view of a pod.
func (c *Compiler) setViewOf(d Direction, at *address) {
	var now View
	if p := at.profiles[d]; p != nil {
		if v := p.view(); v != nil {
			now = v.number | v.plan.coarse[family(at.addr)]
		}
	}
	was := c.table.Views[d][at.addr]
	if was == now {
		return
	}
	if c.table.Views[d][at.addr] = now; now == 0 {
		delete(c.table.Views[d], at.addr)
	}
	note(c.changes.Views[d], at.addr, was, now, equalValues)
}
