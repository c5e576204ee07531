package policy

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// A Cluster is the objects that policies are about.
type Cluster struct {
	Pods       map[service.Name]*Pod
	Namespaces map[string]*Namespace
	Policies   map[service.Name]*Policy
}

// A Judgement is what the policies say about one direction of one pod, and why.
type Judgement struct {
	// Isolates are the policies that isolate the pod, sorted; none: all is allowed.
	Isolates []service.Name
	// Rule allows it; nil: none does.
	Rule *RuleName
	// PortOnly are rules that include the peer, but not the port; PeerOnly those that include
	// the port, but not the peer.
	PortOnly, PeerOnly []RuleName
}

// Allowed reports whether it is.
func (j *Judgement) Allowed() bool { return len(j.Isolates) == 0 || j.Rule != nil }

// A Peering is a connection as one of its pods sees it. Proto 0 asks about no port: a rule for
// some ports is in PortOnly then.
type Peering struct {
	Pod       *Pod
	Direction Direction
	Peer      netip.Addr
	PeerPod   *Pod // nil: the address is no pod's
	Proto     service.Proto
	Port      uint16
}

// Evaluate judges by the objects themselves. It is slow and short: what Compiler and Lookup do
// must agree with it.
func (c *Cluster) Evaluate(p Peering) (j Judgement) {
	for name, policy := range c.Policies {
		if name.Namespace == p.Pod.Name.Namespace && policy.Isolates[p.Direction] && policy.Selector.Matches(p.Pod.Labels) {
			j.Isolates = append(j.Isolates, name)
		}
	}
	slices.SortFunc(j.Isolates, service.Name.Compare)
	for _, name := range j.Isolates {
		for i := range c.Policies[name].Rules[p.Direction] {
			r := &c.Policies[name].Rules[p.Direction][i]
			peer, port := c.hasPeer(name.Namespace, r, p), r.hasPort(p)
			n := RuleName{name, p.Direction, i}
			switch {
			case peer && port && j.Rule == nil:
				j.Rule = &n
			case peer && !port:
				j.PortOnly = append(j.PortOnly, n)
			case port && !peer:
				j.PeerOnly = append(j.PeerOnly, n)
			}
		}
	}
	return j
}

func (c *Cluster) hasPeer(namespace string, r *Rule, p Peering) bool {
	if len(r.Peers) == 0 {
		return !r.NoPeer
	}
	return slices.ContainsFunc(r.Peers, func(peer Peer) bool {
		if peer.Block != nil {
			return peer.Block.Contains(p.Peer)
		}
		if p.PeerPod == nil {
			return false
		}
		of := p.PeerPod.Name.Namespace
		if peer.Namespaces == nil {
			if of != namespace {
				return false
			}
		} else if !everything(peer.Namespaces) {
			if n := c.Namespaces[of]; n == nil || !peer.Namespaces.Matches(n.Labels) {
				return false
			}
		}
		return peer.Pods == nil || peer.Pods.Matches(p.PeerPod.Labels)
	})
}

func (r *Rule) hasPort(p Peering) bool {
	if len(r.Ports) == 0 {
		return !r.NoPort
	}
	destination := p.Pod
	if p.Direction == Egress {
		destination = p.PeerPod
	}
	return slices.ContainsFunc(r.Ports, func(port Port) bool {
		if port.Proto != p.Proto {
			return false
		}
		if port.Name == "" {
			return port.First <= p.Port && p.Port <= port.Last
		}
		return destination != nil && slices.Contains(destination.Ports, NamedPort{port.Name, port.Proto, p.Port})
	})
}
