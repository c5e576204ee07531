package networkpolicy

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Cluster holds all objects that the policies of a cluster depend on.
type Cluster struct {
	Pods            map[api.Name]*api.Pod
	Namespaces      map[string]*api.Namespace
	Policies        map[api.Name]*Policy
	ClusterPolicies map[string]*ClusterPolicy
	Nodes           map[string]*Node
	// Limited names the NetworkPolicies that exceed a limit on one node, with the limit. They isolate pods, and allow
	// nothing. LimitedOn returns it.
	Limited map[api.Name]string
}

// NewCluster returns one without objects.
func NewCluster() *Cluster {
	return &Cluster{Pods: map[api.Name]*api.Pod{}, Namespaces: map[string]*api.Namespace{}, Policies: map[api.Name]*Policy{},
		ClusterPolicies: map[string]*ClusterPolicy{}, Nodes: map[string]*Node{}}
}

// A Judgement is the decision of the policies about one direction of one pod, with the reasons.
type Judgement struct {
	// Isolates are the NetworkPolicies that isolate the pod, sorted.
	Isolates []api.Name
	// Judges are the ClusterNetworkPolicies with rules for the pod, in the order in which they decide.
	Judges []string
	// Rule decides. Nil: no rule does, and the packet passes unless the pod is isolated.
	Rule *RuleName
	// Exempt: the pod is isolated, but not from this peer.
	Exempt bool
	// Passed are the rules that left the decision to the next tier.
	Passed []RuleName
	// PeerOnly are rules of NetworkPolicies that include the peer, but not the port. PortOnly are rules that include
	// the port, but not the peer.
	PeerOnly, PortOnly []RuleName
}

// Allowed reports whether it is.
func (j *Judgement) Allowed() bool {
	if j.Rule != nil {
		return j.Rule.Action != Deny
	}
	return len(j.Isolates) == 0 || j.Exempt
}

// A Peering is a connection from the view of one of its pods. Proto 0 asks about no port: a rule for some ports is in
// PeerOnly then.
type Peering struct {
	Pod       *api.Pod
	Direction Direction
	Peer      netip.Addr
	PeerPod   *api.Pod // nil: the address is no pod's
	Proto     api.Proto
	Port      uint16
	// Exempt: the peer is the pod itself or its node. No NetworkPolicy isolates a pod from either.
	Exempt bool
}

// Evaluate judges by the objects, without a table. It is short and slow: the reference for Compiler and Lookup.
func (c *Cluster) Evaluate(p Peering) (j Judgement) {
	for name, policy := range c.Policies {
		if name.Namespace == p.Pod.Name.Namespace && policy.Isolates[p.Direction] && policy.Selector.Matches(p.Pod.Labels) {
			j.Isolates = append(j.Isolates, name)
		}
	}
	slices.SortFunc(j.Isolates, api.Name.Compare)
	switch {
	case c.evaluateTier(Admin, p, &j):
	case len(j.Isolates) > 0:
		c.evaluateNetworkPolicies(p, &j)
	default:
		c.evaluateTier(Baseline, p, &j)
	}
	return j
}

// evaluateTier reports whether a rule of a tier decides.
func (c *Cluster) evaluateTier(t Tier, p Peering, j *Judgement) bool {
	var all []*ClusterPolicy
	for _, policy := range c.ClusterPolicies {
		if policy.Tier == t && policy.Subject.Namespaces != nil && c.selects("", &policy.Subject, p.Pod) && len(policy.Rules[p.Direction]) > 0 {
			all = append(all, policy)
		}
	}
	slices.SortFunc(all, (*ClusterPolicy).precedes)
	for _, policy := range all {
		j.Judges = append(j.Judges, policy.Name)
	}
	for _, policy := range all {
		for i := range policy.Rules[p.Direction] {
			r := &policy.Rules[p.Direction][i]
			if !c.hasPeer("", &r.Rule, p) || !r.hasPort(p) {
				continue
			}
			n := policy.ruleName(p.Direction, i)
			if r.Action == Pass {
				j.Passed = append(j.Passed, n)
				return false
			}
			j.Rule = &n
			return true
		}
	}
	return false
}

// evaluateNetworkPolicies applies the NetworkPolicies that isolate the pod.
func (c *Cluster) evaluateNetworkPolicies(p Peering, j *Judgement) {
	j.Exempt = p.Exempt
	for _, name := range j.Isolates {
		if c.Limited[name] != "" {
			continue
		}
		for i := range c.Policies[name].Rules[p.Direction] {
			r := &c.Policies[name].Rules[p.Direction][i]
			peer, port := c.hasPeer(name.Namespace, r, p), r.hasPort(p)
			n := RuleName{Policy: name, Direction: p.Direction, Number: i}
			switch {
			case peer && port && j.Rule == nil:
				j.Rule = &n
			case peer && !port:
				j.PeerOnly = append(j.PeerOnly, n)
			case port && !peer:
				j.PortOnly = append(j.PortOnly, n)
			}
		}
	}
}

func (c *Cluster) hasPeer(namespace string, r *Rule, p Peering) bool {
	if len(r.Peers) == 0 {
		return !r.NoPeer
	}
	return slices.ContainsFunc(r.Peers, func(peer Peer) bool {
		switch {
		case peer.Block != nil:
			return peer.Block.Contains(p.Peer)
		case peer.Nodes != nil:
			for _, n := range c.Nodes {
				if peer.Nodes.Matches(n.Labels) && slices.Contains(n.Addrs, p.Peer) {
					return true
				}
			}
			return false
		}
		return p.PeerPod != nil && c.selects(namespace, &peer, p.PeerPod)
	})
}

// selects reports whether a peer of a policy of a namespace includes a pod.
func (c *Cluster) selects(namespace string, peer *Peer, pod *api.Pod) bool {
	of := pod.Name.Namespace
	if peer.Namespaces == nil {
		if of != namespace {
			return false
		}
	} else if !selectsAll(peer.Namespaces) {
		if n := c.Namespaces[of]; n == nil || !peer.Namespaces.Matches(n.Labels) {
			return false
		}
	}
	return peer.Pods == nil || peer.Pods.Matches(pod.Labels)
}

func (r *Rule) hasPort(p Peering) bool {
	if len(r.Ports) == 0 {
		return !r.NoPort
	}
	var named []api.NamedPort // of the destination
	if p.Direction == Ingress {
		named = p.Pod.Ports
	} else if p.PeerPod != nil {
		for i, counts := range countsNames(p.PeerPod.Ports) {
			if counts {
				named = append(named, p.PeerPod.Ports[i])
			}
		}
	}
	return slices.ContainsFunc(r.Ports, func(port Port) bool {
		if port.Proto != p.Proto {
			return false
		}
		if port.Name == "" {
			return port.First <= p.Port && p.Port <= port.Last
		}
		return slices.Contains(named, api.NamedPort{Name: port.Name, Proto: port.Proto, Number: p.Port})
	})
}
