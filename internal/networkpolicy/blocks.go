package networkpolicy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// A View is the number of the blocks of one namespace's NetworkPolicies for one direction. Its low 8 bits are zero: the
// kernel's program adds the length of a prefix. No class and no rule has the same number.
type View uint32

// viewBit is in every View, in no Class, and ruleBit is in no View.
const (
	viewBit  View = 1 << 30
	viewBits View = 1<<21 - 1
)

// A ViewPrefix is a prefix in a View. Its length is a multiple of LengthStep.
type ViewPrefix struct {
	View   View
	Prefix netip.Prefix
}

// LengthStep is the distance of the lengths that a table has. A prefix between is up to 8 elements.
const LengthStep = 4

// Lengths returns the lengths of prefixes in a table, the longest first. bits is the length of an address.
func Lengths(bits int) (all []int) {
	for n := bits; n >= 0; n -= LengthStep {
		all = append(all, n)
	}
	return all
}

// A blockView is the blocks of a namespace for one direction, as the table has them.
type blockView struct {
	number View
	sets   map[string]*blockSet
	plan   *blockPlan
}

// A blockSet is the rules that include an address by a block. Addresses with the same set have the same class.
type blockSet struct {
	key    string
	number Class
	rules  []*compiledRule
}

// A blockPlan is what the blocks of some policies compile to. It depends on these policies only.
type blockPlan struct {
	prefixes map[netip.Prefix]*blockSet
	sets     map[string]*blockSet
	byRule   map[RuleID][]*blockSet
	// listed counts the prefixes of a policy in the plan, and grants its grants to a pod.
	listed, grants map[*compiledPolicy]int
}

// planBlocks compiles the blocks of policies.
func planBlocks(policies []*compiledPolicy, d Direction) *blockPlan {
	plan := &blockPlan{prefixes: map[netip.Prefix]*blockSet{}, sets: map[string]*blockSet{},
		byRule: map[RuleID][]*blockSet{}, listed: map[*compiledPolicy]int{}, grants: map[*compiledPolicy]int{}}
	w := newBlockWalk(policies, d)
	if len(w.nodes) == 0 {
		return plan
	}
	type found struct {
		prefix netip.Prefix
		set    *blockSet
	}
	var all []found
	w.walk(func(n *blockNode, rules []*compiledRule) {
		all = append(all, found{n.prefix, plan.set(rules)})
		for _, e := range n.edges {
			plan.listed[e.peer.rule.policy] += 1 << expansion(n.prefix)
		}
	})
	// Longer prefixes come last: where two have a prefix of the table in common, the longer one decides.
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.prefix.Bits(), b.prefix.Bits()) })
	for _, f := range all {
		for p := range expand(f.prefix) {
			plan.prefixes[p] = f.set
		}
	}
	return plan
}

// set returns the set of some rules.
func (plan *blockPlan) set(rules []*compiledRule) *blockSet {
	key := make([]byte, 0, 4*len(rules))
	for _, r := range rules {
		key = binary.NativeEndian.AppendUint32(key, uint32(r.id))
	}
	s := plan.sets[string(key)]
	if s == nil {
		s = &blockSet{key: string(key), rules: slices.Clone(rules)}
		plan.sets[s.key] = s
		for _, r := range s.rules {
			plan.byRule[r.id] = append(plan.byRule[r.id], s)
			plan.grants[r.policy] += max(1, len(r.Ports))
		}
	}
	return s
}

// expansion is the number of bits that a prefix lacks to a length of the table.
func expansion(p netip.Prefix) int { return (LengthStep - p.Bits()%LengthStep) % LengthStep }

// expand returns the prefixes of a table that together are a prefix.
func expand(p netip.Prefix) func(yield func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		more := expansion(p)
		bits := p.Bits() + more
		for n := range 1 << more {
			raw := p.Addr().AsSlice()
			if more > 0 {
				raw[(bits-1)/8] |= byte(n << ((8 - bits%8) % 8))
			}
			a, _ := netip.AddrFromSlice(raw)
			if !yield(netip.PrefixFrom(a, bits)) {
				return
			}
		}
	}
}

// A blockPeer is one block of a rule. An address is in it if it is inside and not excepted.
type blockPeer struct {
	rule             *walkRule
	inside, excepted int
}

// A walkRule is a rule with blocks. It includes an address if one of its peers does.
type walkRule struct {
	*compiledRule
	peers int // that include the address
	group *ruleGroup
}

// A ruleGroup is the rules of a policy with the same ports. The first that includes an address stands for all.
type ruleGroup struct {
	rules []*walkRule
	first *walkRule // nil: none
}

// A blockNode is a prefix that blocks list. An edge is one of these blocks.
type blockNode struct {
	prefix netip.Prefix
	edges  []blockEdge
}

type blockEdge struct {
	peer   *blockPeer
	except bool
}

// A blockWalk goes through the prefixes of all blocks, and knows the rules that include the present one.
type blockWalk struct {
	nodes   []*blockNode
	groups  []*ruleGroup
	changed bool // the first rule of a group, since the prefix around
}

func newBlockWalk(policies []*compiledPolicy, d Direction) *blockWalk {
	w := &blockWalk{}
	nodes := map[netip.Prefix]*blockNode{}
	list := func(p netip.Prefix, e blockEdge) {
		p = p.Masked()
		if nodes[p] == nil {
			nodes[p] = &blockNode{prefix: p}
			w.nodes = append(w.nodes, nodes[p])
		}
		nodes[p].edges = append(nodes[p].edges, e)
	}
	for _, p := range policies {
		groups := map[string]*ruleGroup{}
		for i := range p.rules[d] {
			r := &p.rules[d][i]
			if len(r.blocks) == 0 || r.NoPort || len(r.Ports) > 0 && len(r.Ports) == len(r.portNames(d)) {
				continue
			}
			key := fmt.Sprint(r.Ports)
			if groups[key] == nil {
				groups[key] = &ruleGroup{}
				w.groups = append(w.groups, groups[key])
			}
			one := &walkRule{compiledRule: r, group: groups[key]}
			one.group.rules = append(one.group.rules, one)
			for _, b := range r.blocks {
				peer := &blockPeer{rule: one}
				list(b.CIDR, blockEdge{peer, false})
				for _, e := range b.Except {
					if e.IsValid() && e.Overlaps(b.CIDR) {
						list(e, blockEdge{peer, true})
					}
				}
			}
		}
	}
	slices.SortFunc(w.nodes, func(a, b *blockNode) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	return w
}

// walk calls f with each prefix whose rules differ from those of the prefix around it.
func (w *blockWalk) walk(f func(n *blockNode, rules []*compiledRule)) {
	var around []*blockNode
	for _, n := range w.nodes {
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(n.prefix.Addr()) {
			w.step(around[len(around)-1], -1)
			around = around[:len(around)-1]
		}
		w.changed = false
		w.step(n, 1)
		around = append(around, n)
		if w.changed {
			f(n, w.rules())
		}
	}
}

// step enters (1) or leaves (-1) a prefix.
func (w *blockWalk) step(n *blockNode, by int) {
	for _, e := range n.edges {
		p := e.peer
		was := p.inside > 0 && p.excepted == 0
		if e.except {
			p.excepted += by
		} else {
			p.inside += by
		}
		switch is := p.inside > 0 && p.excepted == 0; {
		case is && !was:
			p.rule.peers++
		case was && !is:
			p.rule.peers--
		default:
			continue
		}
		g := p.rule.group
		before := g.first
		g.first = nil
		if i := slices.IndexFunc(g.rules, func(r *walkRule) bool { return r.peers > 0 }); i >= 0 {
			g.first = g.rules[i]
		}
		w.changed = w.changed || g.first != before
	}
}

// rules returns the rules that include the present prefix, one of each group.
func (w *blockWalk) rules() (all []*compiledRule) {
	for _, g := range w.groups {
		if g.first != nil {
			all = append(all, g.first.compiledRule)
		}
	}
	return all
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

// planViews compiles the blocks of the namespaces whose policies changed.
func (c *Compiler) planViews() {
	for v := range c.dirtyViews {
		v.space.plans[v.d] = planBlocks(v.space.usedIn(v.d), v.d)
	}
}

// updateViews writes the changed views to the table.
func (c *Compiler) updateViews() {
	for v := range c.dirtyViews {
		plan := v.space.plans[v.d]
		if used := v.space.usedIn(v.d); slices.ContainsFunc(used, func(p *compiledPolicy) bool { return p.overGrants }) {
			plan = planBlocks(slices.DeleteFunc(used, func(p *compiledPolicy) bool { return p.overGrants }), v.d)
		}
		c.setView(v, plan)
	}
	clear(c.dirtyViews)
}

// setView makes the table have a plan, and gives the classes to the profiles of the namespace.
func (c *Compiler) setView(key viewKey, plan *blockPlan) {
	v := key.space.views[key.d]
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
		changed = c.setPrefix(ViewPrefix{v.number, p}, s.number) || changed
	}
	for p := range old.prefixes {
		if plan.prefixes[p] == nil {
			changed = c.setPrefix(ViewPrefix{v.number, p}, 0) || changed
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
		if v := viewBit | View(n^n>>32)&viewBits<<8; !c.views[v] {
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
			now = v.number
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

// blockKey is the name of a block.
func blockKey(b *Block) string {
	except := make([]string, len(b.Except))
	for i, e := range b.Except {
		except[i] = e.String()
	}
	slices.Sort(except)
	return b.CIDR.String() + "|" + strings.Join(except, ",")
}
