package networkpolicy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Tier is a group of policies that decide together. Admin comes first. NetworkPolicies are next, and decide finally
// about the pods that they isolate. Baseline comes last. A packet about which no tier decides is allowed.
type Tier uint8

// The tiers. The zero one is NetworkPolicies'.
const (
	Namespaced Tier = iota
	Admin
	Baseline
)

// String returns "Admin", "Baseline", or nothing for NetworkPolicies.
func (t Tier) String() string { return [...]string{"", "Admin", "Baseline"}[t] }

// order is which tier decides first.
func (t Tier) order() int { return [...]int{Namespaced: 1, Admin: 0, Baseline: 2}[t] }

// An Action is the effect of a rule of a ClusterNetworkPolicy. Rules of NetworkPolicies always accept.
type Action uint8

// The actions. Pass leaves the decision to the next tier.
const (
	Accept Action = iota
	Deny
	Pass
)

// String returns the name in the API.
func (a Action) String() string { return [...]string{"Accept", "Deny", "Pass"}[a] }

// A ClusterPolicy is a ClusterNetworkPolicy of policy.networking.k8s.io. Within a tier the lowest Priority decides
// first, then the name, then the order of the rules.
type ClusterPolicy struct {
	Name     string
	UID      string
	Tier     Tier
	Priority int
	Subject  Peer // with Namespaces; the zero one selects no pod
	Rules    [2][]ClusterRule
	// Problems name the parts that are not supported or wrong, and the effect on each.
	Problems []string
	// Invalid means that some Problems are mistakes. Otherwise all of them are features that Fairway lacks.
	Invalid bool
}

// HasNodes reports whether the policy has a peer that selects nodes. A nil policy has none.
func (p *ClusterPolicy) HasNodes() bool {
	return p != nil && slices.ContainsFunc(slices.Concat(p.Rules[:]...), func(r ClusterRule) bool {
		return slices.ContainsFunc(r.Peers, func(peer Peer) bool { return peer.Nodes != nil })
	})
}

// A ClusterRule applies its Action to the packets that its Rule includes.
type ClusterRule struct {
	Name   string // the author's; mostly empty
	Action Action
	Rule
}

// A Node has the parts of a node that policies select by.
type Node struct {
	Name   string
	Labels map[string]string
	Addrs  []netip.Addr
}

// ruleName is where a rule stands.
func (p *ClusterPolicy) ruleName(d Direction, i int) RuleName {
	r := &p.Rules[d][i]
	return RuleName{Policy: api.Name{Name: p.Name}, Direction: d, Number: i, Tier: p.Tier, Action: r.Action, Title: r.Name}
}

// precedes compares two ClusterNetworkPolicies by the order in which they decide.
func (p *ClusterPolicy) precedes(o *ClusterPolicy) int {
	return cmp.Or(cmp.Compare(p.Tier.order(), o.Tier.order()), cmp.Compare(p.Priority, o.Priority), cmp.Compare(p.Name, o.Name))
}

// SetClusterPolicy sets or, with nil, removes the ClusterNetworkPolicy of a name.
func (c *Compiler) SetClusterPolicy(name string, object *ClusterPolicy) {
	c.cluster = slices.DeleteFunc(c.cluster, func(p *compiledPolicy) bool { return p.cluster.Name == name })
	if object != nil {
		c.sequence++
		c.cluster = append(c.cluster, &compiledPolicy{name: api.Name{Name: name}, cluster: object, sequence: c.sequence})
		slices.SortFunc(c.cluster, func(a, b *compiledPolicy) int { return a.cluster.precedes(b.cluster) })
	}
	c.dirtyCluster = true
}

// SetNode sets or, with nil, removes the node of a name.
func (c *Compiler) SetNode(name string, object *Node) {
	if c.nodes[name] = object; object == nil {
		delete(c.nodes, name)
	}
	c.terms.networksChanged = c.terms.networksChanged || c.terms.nodes > 0
}

// addClusterPolicies returns all policies that decide about a direction of a pod: tier Admin, the pod's own
// NetworkPolicies, and tier Baseline if no NetworkPolicy isolates the pod.
func (c *Compiler) addClusterPolicies(p *pod, d Direction, own []*compiledPolicy) []*compiledPolicy {
	var before, behind []*compiledPolicy
	for _, k := range c.cluster {
		switch {
		case len(k.cluster.Rules[d]) == 0 || !k.cluster.Subject.includes(p):
		case k.cluster.Tier == Admin:
			before = append(before, k)
		case len(own) == 0:
			behind = append(behind, k)
		}
	}
	return slices.Concat(before, own, behind)
}

// includes reports whether a subject includes a pod.
func (p *Peer) includes(q *pod) bool {
	t := term{namespaces: p.Namespaces, pods: p.Pods}
	return p.Namespaces != nil && t.includes(q)
}

// judgesEgress reports whether a ClusterNetworkPolicy has egress rules.
func (c *Compiler) judgesEgress() bool {
	return slices.ContainsFunc(c.cluster, func(p *compiledPolicy) bool { return len(p.cluster.Rules[Egress]) > 0 })
}
