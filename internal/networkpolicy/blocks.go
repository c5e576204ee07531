package networkpolicy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// Lengths returns the lengths that prefixes of a view have, the longest first. is4 is the family.
func (v View) Lengths(is4 bool) (all []int) {
	bits := 128
	if is4 {
		bits = 32
	}
	for n := bits; n >= 0; n -= v.step(is4) {
		all = append(all, n)
	}
	return all
}

// step is the distance of the lengths of a view.
func (v View) step(is4 bool) int {
	switch {
	case v&Coarse == 0:
		return 4
	case is4:
		return 8
	}
	return 16
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
	coarse   [2]View // Coarse or 0: IPv6, IPv4
}

// planBlocks compiles the blocks of policies.
func planBlocks(policies []*compiledPolicy, d Direction) *blockPlan {
	plan := &blockPlan{prefixes: map[netip.Prefix]*blockSet{}, sets: map[string]*blockSet{}, byRule: map[RuleID][]*blockSet{}}
	if len(policies) == 0 {
		return plan
	}
	type found struct {
		prefix netip.Prefix
		set    *blockSet
	}
	var all [2][]found
	w := newBlockWalk(policies, d)
	w.walk(func(n *blockNode) {
		some := &all[family(n.prefix.Addr())]
		*some = append(*some, found{n.prefix, plan.set(w.rules())})
	})
	for i, some := range all {
		// Longer prefixes come last: where two have a prefix of the table in common, the longer one decides.
		slices.SortStableFunc(some, func(a, b found) int { return cmp.Compare(a.prefix.Bits(), b.prefix.Bits()) })
		more := 0
		for _, f := range some {
			more += 1<<expansion(f.prefix, Coarse) - 1<<expansion(f.prefix, 0)
		}
		if more <= maxCoarse {
			plan.coarse[i] = Coarse
		}
		for _, f := range some {
			for p := range expand(f.prefix, plan.coarse[i]) {
				plan.prefixes[p] = f.set
			}
		}
	}
	return plan
}

// family is 1 for an address of IPv4, and 0 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 1
	}
	return 0
}

// A blockCost is the elements of a policy's blocks: prefixes of the plan, and grants to each pod.
type blockCost struct{ prefixes, grants int }

// countBlocks returns the costs of policies in the plan of all of them. It does not make the plan, which can be huge.
func countBlocks(policies []*compiledPolicy, d Direction) map[*compiledPolicy]*blockCost {
	costs := make(map[*compiledPolicy]*blockCost, len(policies))
	for _, p := range policies {
		costs[p] = &blockCost{}
	}
	w := newBlockWalk(policies, d)
	seen := map[uint64]bool{}
	w.walk(func(n *blockNode) {
		for i, e := range n.edges { // those of a policy are adjacent
			if p := e.peer.rule.policy; i == 0 || p != n.edges[i-1].peer.rule.policy {
				costs[p].prefixes += 1 << expansion(n.prefix, 0)
			}
		}
		if !seen[w.hash] {
			seen[w.hash] = true
			w.counted++
		}
	})
	for _, g := range w.groups {
		for _, r := range g.rules {
			costs[r.policy].grants += r.sets * max(1, len(r.Ports))
		}
	}
	return costs
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
		}
	}
	return s
}

// expansion is the number of bits that a prefix lacks to a length of a view.
func expansion(p netip.Prefix, v View) int {
	step := v.step(p.Addr().Is4())
	return (step - p.Bits()%step) % step
}

// expand returns the prefixes of a view that together are a prefix.
func expand(p netip.Prefix, v View) func(yield func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		more := expansion(p, v)
		bits := p.Bits() + more
		for n := range 1 << more {
			raw := p.Addr().AsSlice()
			for i := range more {
				bit := bits - 1 - i
				raw[bit/8] |= byte(n>>i&1) << (7 - bit%8)
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
	hash  uint64
	sets  int // that were counted while the rule was its group's first
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
	changed bool   // the first rule of a group, since the prefix around
	hash    uint64 // of the first rules of all groups
	counted int    // sets of rules
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
			one := &walkRule{compiledRule: r, group: groups[key], hash: rand.Uint64()}
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
func (w *blockWalk) walk(f func(*blockNode)) {
	var around []*blockNode
	leave := func() {
		w.step(around[len(around)-1], -1)
		around = around[:len(around)-1]
	}
	for _, n := range w.nodes {
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(n.prefix.Addr()) {
			leave()
		}
		w.changed = false
		w.step(n, 1)
		around = append(around, n)
		if w.changed {
			f(n)
		}
	}
	for len(around) > 0 {
		leave()
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
		w.setFirst(p.rule.group)
	}
}

// setFirst finds the first rule of a group that includes the present prefix.
func (w *blockWalk) setFirst(g *ruleGroup) {
	before := g.first
	g.first = nil
	if i := slices.IndexFunc(g.rules, func(r *walkRule) bool { return r.peers > 0 }); i >= 0 {
		g.first = g.rules[i]
	}
	if g.first == before {
		return
	}
	w.changed = true
	if before != nil {
		w.hash ^= before.hash
		before.sets += w.counted
	}
	if g.first != nil {
		w.hash ^= g.first.hash
		g.first.sets -= w.counted
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

// blockKey is the name of a block.
func blockKey(b *Block) string {
	except := make([]string, len(b.Except))
	for i, e := range b.Except {
		except[i] = e.String()
	}
	slices.Sort(except)
	return b.CIDR.String() + "|" + strings.Join(except, ",")
}
