package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// These limits bound the cost of one namespace's policies on each node. The cheapest policies count first. A policy
// that exceeds a limit isolates its pods, and allows nothing.
const (
	// MaxPeers limits the peers, exceptions of blocks and ports that a namespace's policies may list. A policy counts
	// as two of them, and ten labels or values in selectors as one.
	MaxPeers = 4_000
	// MaxGrants limits the elements for this node's pods: pods x classes of peers x ports, and prefixes of blocks.
	MaxGrants = 200_000
)

// limits are MaxPeers and MaxGrants, or lower in tests.
type limits struct{ maxPeers, maxGrants int }

// The cost of policies and selectors. Even a policy without rules is compared with each pod of its namespace, and each
// value of a namespace selector with each pod of the cluster.
const (
	policyCost    = 2
	valuesPerCost = 10
	// namedBlockCost is the cost of a block of an egress rule with named ports. It is compared with each pod that gives
	// one of the names.
	namedBlockCost = 100
)

// cost is the number of items that a policy lists: itself, peers, exceptions, ports and values of selectors.
func (p *Policy) cost() (n int) {
	values := selectorSize(&p.Selector)
	for d, rules := range p.Rules {
		for i := range rules {
			n += len(rules[i].Peers) + len(rules[i].Ports)
			named := len(rules[i].portNames(Direction(d))) > 0
			for _, peer := range rules[i].Peers {
				if peer.Block != nil {
					n += len(peer.Block.Except)
				}
				if peer.Block != nil && named {
					n += namedBlockCost
				}
				values += selectorSize(peer.Pods) + selectorSize(peer.Namespaces) + selectorSize(peer.Nodes)
			}
		}
	}
	return policyCost + n + values/valuesPerCost
}

// selectorSize returns the number of labels and values of a selector, which may be nil.
func selectorSize(s *api.Selector) (n int) {
	if s == nil {
		return 0
	}
	for i := range s.Requirements {
		n += max(1, len(s.Requirements[i].Values))
	}
	return n
}

// limitPeers marks the policies of a namespace that exceed MaxPeers.
func (c *Compiler) limitPeers(s *namespaceState) {
	all, costs := make([]*compiledPolicy, 0, len(s.policies)), make(map[*compiledPolicy]int, len(s.policies))
	for _, p := range s.policies {
		all, costs[p] = append(all, p), p.cost
	}
	cheapestFirst(all, costs)
	sum := 0
	for _, p := range all {
		sum += p.cost
		over := sum > c.limits.maxPeers
		if over != p.overPeers {
			again := c.newPolicy(p.object)
			again.overPeers = over
			s.policies[p.name.Name], s.sorted = again, nil
			c.changeProblem(p.name, over, fmt.Sprintf("the NetworkPolicies of this namespace list more than %d peers, ports, policies and values of selectors", c.limits.maxPeers))
		}
	}
}

// cheapestFirst sorts a namespace's policies.
func cheapestFirst(all []*compiledPolicy, costs map[*compiledPolicy]int) {
	slices.SortFunc(all, func(a, b *compiledPolicy) int {
		return cmp.Or(cmp.Compare(costs[a], costs[b]), a.name.Compare(b.name))
	})
}

// grants returns the elements of a policy's rules for this node's pods. used returns the classes that a term includes,
// and blocks has the costs of the namespace's blocks.
func (p *compiledPolicy) grants(blocks [2]map[*compiledPolicy]*blockCost, used func(*term) classCount) (n int) {
	for d := range p.rules {
		each := 0 // pod
		for i := range p.rules[d] {
			r := &p.rules[d][i]
			peers, named := 0, 0
			for _, t := range r.terms {
				n := used(t)
				peers += n.addrs
				if len(r.names) > 0 {
					named += n.ports
				}
			}
			if r.allAddrs || r.anyPod {
				peers++
				for _, t := range r.names {
					named += used(t).ports
				}
			}
			each += peers*max(1, len(r.Ports)) + named
		}
		if b := blocks[d][p]; b != nil {
			each += b.grants
			n += b.prefixes
		}
		n += p.addrsByDirection[d] * each
	}
	return n
}

// costsOf returns the elements of a namespace's policies.
func (c *Compiler) costsOf(s *namespaceState, all []*compiledPolicy) map[*compiledPolicy]int {
	last := 0 // when the classes of a term changed
	costs := func(used func(*term) classCount) (costs map[*compiledPolicy]int, sum int) {
		costs = map[*compiledPolicy]int{}
		for _, p := range all {
			costs[p] = p.grants(s.blockCosts, used)
			sum += costs[p]
		}
		return costs, sum
	}
	now, sum := costs(func(t *term) classCount { last = max(last, t.changed); return t.used })
	if sum <= c.limits.maxGrants {
		return now
	}
	if s.costs == nil || last > s.costsPass {
		s.costs, _ = costs(ownClasses(all))
		s.costsPass = c.passes
	}
	return s.costs
}

// ownClasses counts classes as policies divide addresses and ports. Selectors of other namespaces, which also divide
// them, do not count.
func ownClasses(policies []*compiledPolicy) func(*term) classCount {
	own := map[*term]bool{}
	for _, p := range policies {
		for _, rules := range p.rules {
			for i := range rules {
				for _, t := range slices.Concat(rules[i].terms, rules[i].names) {
					own[t] = true
				}
			}
		}
	}
	seen, parts, used := map[*class]bool{}, map[string]bool{}, map[*term]classCount{}
	for t := range own {
		for k := range t.classes {
			if k.refs == 0 || seen[k] {
				continue
			}
			seen[k] = true
			part := slices.DeleteFunc(slices.Clone(k.terms), func(t *term) bool { return !own[t] })
			key := classKey(part, k.named)
			if parts[string(key)] {
				continue
			}
			parts[string(key)] = true
			for _, t := range part {
				n := used[t]
				n.add(k, 1)
				used[t] = n
			}
		}
	}
	return func(t *term) classCount { return used[t] }
}

// limitGrants marks the policies that exceed MaxGrants. It returns the addresses of pods for which a mark changed.
func (c *Compiler) limitGrants() map[*address]bool {
	spaces := map[string][]*compiledPolicy{}
	for p := range c.usedPolicies {
		if p.cluster == nil {
			spaces[p.name.Namespace] = append(spaces[p.name.Namespace], p)
		}
	}
	changed := map[*compiledPolicy]bool{}
	for name, all := range spaces {
		space := c.namespace(name)
		costs, sum := c.costsOf(space, all), 0
		cheapestFirst(all, costs)
		for _, p := range all {
			sum += costs[p]
			cut := sum > c.limits.maxGrants
			if cut == p.overGrants {
				continue
			}
			p.overGrants, changed[p] = cut, true
			for d := range p.rules {
				c.dirtyView(p, Direction(d))
			}
			c.changeProblem(p.name, cut, fmt.Sprintf(
				"the NetworkPolicies of this namespace allow more than %d pairs of a pod of node %s and peers on a port", c.limits.maxGrants, c.node))
		}
	}
	subjects := map[*address]bool{}
	if len(changed) == 0 {
		return nil
	}
	for _, at := range c.addrs {
		for d := range at.policies {
			if slices.ContainsFunc(at.policies[d], func(p *compiledPolicy) bool { return changed[p] }) {
				subjects[at] = true
			}
		}
	}
	return subjects
}

// changeProblem records that a policy exceeds a limit, or does so no longer.
func (c *Compiler) changeProblem(name api.Name, is bool, text string) {
	if !is {
		delete(c.problems, name)
		return
	}
	c.problems[name] = text + ": this one isolates pods and allows nothing"
}

// LimitedOn returns the policies that exceed a limit on a node, with the limit.
func (c *Cluster) LimitedOn(node string) map[api.Name]string {
	all := New(node)
	for n, p := range c.Policies {
		all.SetPolicy(n, p)
	}
	for n, p := range c.Pods {
		all.SetPod(n, p)
	}
	for n, s := range c.Namespaces {
		all.SetNamespace(n, s)
	}
	all.Compile()
	return all.Problems()
}

// Stats are the sizes of a Compiler's results.
type Stats struct {
	Policies int // that isolate pods of this node
	Classes  int // of addresses
	Grants   int // pod, class and ports
}

// Stats returns the sizes of now.
func (c *Compiler) Stats() Stats { return Stats{len(c.usedPolicies), len(c.classes), c.grants} }

// Isolates returns the pod that has an address, and the policies that isolate it in a direction.
func (c *Compiler) Isolates(a netip.Addr, d Direction) (pod api.Name, by []api.Name) {
	at := c.addrs[a]
	if at == nil {
		return pod, nil
	}
	switch {
	case at.owner != nil:
		pod = at.owner.Name
	case at.sandbox != nil:
		pod = at.sandbox.Pod
	}
	for _, p := range at.policies[d] {
		if p.cluster == nil {
			by = append(by, p.name)
		}
	}
	return pod, by
}

// Problems returns the policies that exceed a limit, with the limit. The map belongs to the Compiler.
func (c *Compiler) Problems() map[api.Name]string { return c.problems }
