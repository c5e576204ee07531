package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// What one namespace's policies may cost each node. The cheapest count first; those that
// exceed a limit isolate pods as they say, and allow nothing.
const (
	// MaxPeers is how many peers, exceptions of blocks and ports a namespace's policies may list. A policy
	// counts as two of them, and ten labels or values in selectors as one.
	MaxPeers = 4_000
	// MaxGrants is what they may allow this node's pods: pods x classes of peers x ports.
	MaxGrants = 200_000
)

// limits are the constants, but in tests.
type limits struct{ peers, grants int }

// What policies and selectors count as: a policy without rules is looked at for each pod of its namespace, and
// each value of a selector of namespaces for each pod of the cluster.
const (
	listedPolicy = 2
	listedValues = 10
)

// listed is how much a policy lists: itself, peers, exceptions, ports and what its selectors have.
func (p *Policy) listed() (n int) {
	values := size(&p.Selector)
	for _, rules := range p.Rules {
		for i := range rules {
			n += len(rules[i].Peers) + len(rules[i].Ports)
			for _, peer := range rules[i].Peers {
				if peer.Block != nil {
					n += len(peer.Block.Except)
				}
				values += size(peer.Pods) + size(peer.Namespaces) + size(peer.Nodes)
			}
		}
	}
	return listedPolicy + n + values/listedValues
}

// size is how many labels and values a selector has; it may be nil.
func size(s *api.Selector) (n int) {
	if s == nil {
		return 0
	}
	for i := range s.Requirements {
		n += max(1, len(s.Requirements[i].Values))
	}
	return n
}

// limitPeers finds the policies of a namespace that count, by what they list.
func (c *Compiler) limitPeers(s *space) {
	all, costs := make([]*compiledPolicy, 0, len(s.policies)), make(map[*compiledPolicy]int, len(s.policies))
	for _, p := range s.policies {
		all, costs[p] = append(all, p), p.listed
	}
	cheapestFirst(all, costs)
	sum := 0
	for _, p := range all {
		sum += p.listed
		over := sum > c.limits.peers
		if over != p.overPeers {
			again := c.newPolicy(p.object)
			again.overPeers = over
			s.policies[p.name.Name], s.sorted = again, nil
			c.changeProblem(p.name, over, fmt.Sprintf("the NetworkPolicies of this namespace list more than %d peers, ports, policies and values of selectors", c.limits.peers))
		}
	}
}

// cheapestFirst sorts a namespace's policies.
func cheapestFirst(all []*compiledPolicy, costs map[*compiledPolicy]int) {
	slices.SortFunc(all, func(a, b *compiledPolicy) int {
		return cmp.Or(cmp.Compare(costs[a], costs[b]), a.name.Compare(b.name))
	})
}

// estimate is at least what a policy grants this node's pods.
func (p *compiledPolicy) estimate() (n int) {
	for d := range p.rules {
		for i := range p.rules[d] {
			r := &p.rules[d][i]
			peers := 0
			if r.allAddrs {
				peers++
			}
			if r.anyPod {
				peers++
			}
			for _, t := range r.terms {
				peers += t.used
			}
			n += p.isolates[d] * peers * max(1, len(r.Ports))
		}
	}
	return n
}

// limitGrants finds the policies that count, by what they grant, and returns the addresses for
// which that changed.
func (c *Compiler) limitGrants() map[*address]bool {
	costs, spaces := map[*compiledPolicy]int{}, map[string][]*compiledPolicy{}
	for p := range c.used {
		if p.cluster == nil {
			costs[p] = p.estimate()
			spaces[p.name.Namespace] = append(spaces[p.name.Namespace], p)
		}
	}
	changed := map[*compiledPolicy]bool{}
	for _, all := range spaces {
		cheapestFirst(all, costs)
		sum := 0
		for _, p := range all {
			sum += costs[p]
			if cut := sum > c.limits.grants; cut != p.overGrants {
				p.overGrants, changed[p] = cut, true
				c.changeProblem(p.name, cut, fmt.Sprintf(
					"the NetworkPolicies of this namespace allow more than %d pairs of a pod of node %s and peers on a port", c.limits.grants, c.node))
			}
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

// changeProblem notes that a policy began or ceased to exceed a limit.
func (c *Compiler) changeProblem(name api.Name, is bool, text string) {
	if !is {
		delete(c.problems, name)
		return
	}
	c.problems[name] = text + ": this one isolates pods and allows nothing"
}

// LimitedOn returns the policies that exceed a limit on a node, and which.
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

// Stats are sizes of what a Compiler made.
type Stats struct {
	Policies int // that isolate pods of this node
	Classes  int // of addresses
	Grants   int // pod, class and ports
}

// Stats returns the sizes of now.
func (c *Compiler) Stats() Stats { return Stats{len(c.used), len(c.classes), c.grants} }

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

// Problems are the policies that exceed a limit, and which. It is the Compiler's own.
func (c *Compiler) Problems() map[api.Name]string { return c.problems }
