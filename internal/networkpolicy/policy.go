package networkpolicy

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A compiledPolicy is a policy. It has rules with terms while it selects a pod of this node.
type compiledPolicy struct {
	name             api.Name
	object           *Policy        // or
	cluster          *ClusterPolicy // one of these
	sequence         int
	addrs            int // addresses that it isolates, by direction
	addrsByDirection [2]int
	rules            [2][]compiledRule
	listsBlocks      [2]bool // a rule of the direction has a block
	cost             int     // peers, exceptions and ports
	overPeers        bool    // it exceeds MaxPeers: it has no rules
	overGrants       bool    // it exceeds MaxGrants: its rules do not count
}

type compiledRule struct {
	*Rule
	policy   *compiledPolicy
	name     RuleName
	id       RuleID
	allAddrs bool // all addresses
	anyPod   bool // a peer is all pods
	terms    []*term
	names    []*term  // named ports
	blocks   []*Block // of a NetworkPolicy
}

// A ruleUse counts the references to a rule. A policy and its successor may exist at the same time.
type ruleUse struct {
	id   RuleID
	refs int
}

func (c *Compiler) newPolicy(object *Policy) *compiledPolicy {
	c.sequence++
	p := &compiledPolicy{name: object.Name, object: object, sequence: c.sequence, cost: object.cost()}
	for d := range object.Rules {
		p.listsBlocks[d] = slices.ContainsFunc(object.Rules[d], func(r Rule) bool {
			return slices.ContainsFunc(r.Peers, func(peer Peer) bool { return peer.Block != nil })
		})
	}
	return p
}

// tier is the policy's.
func (p *compiledPolicy) tier() Tier {
	if p.cluster != nil {
		return p.cluster.Tier
	}
	return Namespaced
}

// eachRule calls f for each rule.
func (p *compiledPolicy) eachRule(f func(Direction, int, *Rule, RuleName)) {
	for d := range p.rules {
		if p.cluster != nil {
			for i := range p.cluster.Rules[d] {
				f(Direction(d), i, &p.cluster.Rules[d][i].Rule, p.cluster.ruleName(Direction(d), i))
			}
			continue
		}
		for i := range p.object.Rules[d] {
			f(Direction(d), i, &p.object.Rules[d][i], RuleName{Policy: p.name, Direction: Direction(d), Number: i})
		}
	}
}

// use counts one more address for a policy. The first one adds the policy's rules and terms.
func (c *Compiler) use(p *compiledPolicy, d Direction) {
	if p.addrsByDirection[d]++; p.addrsByDirection[d] == 1 {
		c.dirtyView(p, d)
	}
	if p.addrs++; p.addrs > 1 {
		return
	}
	c.usedPolicies[p] = true
	if p.overPeers {
		return
	}
	p.eachRule(func(d Direction, _ int, rule *Rule, name RuleName) {
		r := compiledRule{Rule: rule, policy: p, name: name, id: passRule, allAddrs: len(rule.Peers) == 0 && !rule.NoPeer}
		if name.Action != Pass {
			r.id = c.takeRule(name)
		}
		names := r.portNames(d)
		for j := range r.Peers {
			c.usePeer(&r, &r.Peers[j], len(names) > 0)
		}
		for _, n := range names {
			r.names = append(r.names, c.terms.usePort(n, &r))
		}
		p.rules[d] = append(p.rules[d], r)
	})
}

// usePeer adds a peer to a rule.
func (c *Compiler) usePeer(r *compiledRule, peer *Peer, named bool) {
	namespace := r.policy.name.Namespace
	switch {
	case peer.everyPod():
		r.anyPod = true
	case peer.Block == nil || r.policy.cluster != nil:
		r.terms = append(r.terms, c.terms.peer(namespace, peer))
	default:
		r.blocks = append(r.blocks, peer.Block)
		if named {
			r.terms = append(r.terms, c.terms.namedBlock(namespace, peer.Block))
		}
	}
}

// dirtyCosts marks the costs of the namespace that has the NetworkPolicies of an address.
func (c *Compiler) dirtyCosts(policies []*compiledPolicy) {
	i := slices.IndexFunc(policies, func(p *compiledPolicy) bool { return p.cluster == nil })
	if i < 0 {
		return
	}
	if s := c.namespaces[policies[i].name.Namespace]; s != nil {
		s.costs = nil
	}
}

// dirtyView marks the view that has the blocks of a policy.
func (c *Compiler) dirtyView(p *compiledPolicy, d Direction) {
	if p.listsBlocks[d] {
		c.dirtyViews[viewKey{c.namespace(p.name.Namespace), d}] = true
	}
}

// unuse is the inverse of use.
func (c *Compiler) unuse(p *compiledPolicy, d Direction) {
	if p.addrsByDirection[d]--; p.addrsByDirection[d] == 0 {
		c.dirtyView(p, d)
	}
	if p.addrs--; p.addrs > 0 {
		return
	}
	delete(c.usedPolicies, p)
	if p.overGrants {
		p.overGrants = false
		delete(c.problems, p.name)
	}
	for d := range p.rules {
		for i := range p.rules[d] {
			r := &p.rules[d][i]
			for _, n := range r.portNames(Direction(d)) {
				c.terms.dropPort(n, r)
			}
			for _, t := range r.terms {
				c.terms.release(t)
			}
			if r.id != passRule {
				c.releaseRule(r.name)
			}
		}
		p.rules[d] = nil
	}
}

func (p *Peer) everyPod() bool {
	return p.Namespaces != nil && selectsAll(p.Namespaces) && (p.Pods == nil || selectsAll(p.Pods))
}

// portNames returns the named ports whose numbers depend on the peer. For ingress the pod itself has the numbers, so
// there are none.
func (r *Rule) portNames(d Direction) (all []portName) {
	for _, p := range r.Ports {
		if d == Egress && p.Name != "" {
			all = append(all, portName{p.Name, p.Proto})
		}
	}
	return all
}

func (c *Compiler) takeRule(name RuleName) RuleID {
	u := c.rules[name]
	if u == nil {
		u = &ruleUse{id: c.newRuleID(name)}
		c.rules[name], c.table.Rules[u.id] = u, name
		note(c.changes.Rules, u.id, RuleName{}, name, equalValues)
	}
	u.refs++
	return u.id
}

// newRuleID derives a number from a name. No other rule has the number.
func (c *Compiler) newRuleID(name RuleName) RuleID {
	bits, mask := ruleBit, ruleBit-1
	if name.Action == Deny {
		bits, mask = denyBit|ruleBit, ingressBit-1
		if name.Direction == Ingress {
			bits |= ingressBit
		}
	}
	if name.Number < 0 {
		return bits | 1 // the fixed ones
	}
	h := fnv.New64a()
	fmt.Fprint(h, name)
	for n := h.Sum64(); ; n++ {
		id := bits | RuleID(n^n>>32)&mask
		if _, taken := c.table.Rules[id]; !taken && id != bits|1 {
			return id
		}
	}
}

func (c *Compiler) releaseRule(name RuleName) {
	u := c.rules[name]
	if u.refs--; u.refs == 0 {
		delete(c.rules, name)
		delete(c.table.Rules, u.id)
		note(c.changes.Rules, u.id, name, RuleName{}, equalValues)
	}
}
