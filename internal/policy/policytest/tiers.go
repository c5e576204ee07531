package policytest

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/labels"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

// stepTiers changes a ClusterNetworkPolicy or a node.
func (w *World) stepTiers(to []*policy.Compiler) {
	if w.IntN(3) == 0 {
		n := &policy.Node{Name: pick(w, "n1", "n2", "n3"), Labels: w.labels()}
		for range w.IntN(3) {
			if a := w.Addr(); !slices.Contains(n.Addrs, a) {
				n.Addrs = append(n.Addrs, a)
			}
		}
		w.Nodes[n.Name] = n
		if w.IntN(3) == 0 {
			delete(w.Nodes, n.Name)
		}
		for _, c := range to {
			c.SetNode(n.Name, w.Nodes[n.Name])
		}
		return
	}
	name := pick(w, "a", "b", "c", "d")
	w.ClusterPolicies[name] = w.clusterPolicy(name)
	if w.IntN(3) == 0 {
		delete(w.ClusterPolicies, name)
	}
	for _, c := range to {
		c.SetClusterPolicy(name, w.ClusterPolicies[name])
	}
}

func (w *World) clusterPolicy(name string) *policy.ClusterPolicy {
	p := &policy.ClusterPolicy{Name: name, Tier: pick(w, policy.Admin, policy.Baseline), Priority: w.IntN(4), Subject: w.somePods()}
	for d := range p.Rules {
		for range w.IntN(5) {
			p.Rules[d] = append(p.Rules[d], w.clusterRule(policy.Direction(d)))
		}
	}
	return p
}

// somePods are those that a ClusterNetworkPolicy selects: often all.
func (w *World) somePods() (p policy.Peer) {
	namespaces := w.selector()
	if p.Namespaces = &namespaces; w.IntN(2) == 0 {
		pods := w.selector()
		p.Pods = &pods
	}
	if w.IntN(3) == 0 {
		p = policy.Peer{Namespaces: &labels.Selector{}}
	}
	return p
}

func (w *World) clusterRule(d policy.Direction) policy.ClusterRule {
	r := policy.ClusterRule{Action: pick(w, policy.Accept, policy.Deny, policy.Pass)}
	if w.IntN(4) == 0 {
		r.Name = fmt.Sprint("rule-", w.IntN(3))
	}
	named := true
	for range 1 + w.IntN(2) {
		switch w.IntN(4) {
		case 0:
			if d == policy.Egress {
				b := w.block()
				b.Except, named = nil, false
				r.Peers = append(r.Peers, policy.Peer{Block: b})
				continue
			}
		case 1:
			if d == policy.Egress {
				s := w.selector()
				named = false
				r.Peers = append(r.Peers, policy.Peer{Nodes: &s})
				continue
			}
		}
		r.Peers = append(r.Peers, w.somePods())
	}
	for range w.IntN(3) {
		p := policy.Port{Proto: pick(w, service.TCP, service.TCP, service.UDP, service.SCTP)}
		switch w.IntN(5) {
		case 0:
			if !named {
				continue // the API server refuses it: neither nodes nor networks have any
			}
			p.Name = pick(w, "http", "dns")
			for _, p.Proto = range []service.Proto{service.TCP, service.UDP, service.SCTP} {
				r.Ports = append(r.Ports, p)
			}
			continue
		case 1:
			p.First = w.FirstPort + uint16(w.IntN(4))
			p.Last = p.First + 1 + uint16(w.IntN(4))
		case 2:
			p.Last = 65535
		default:
			p.First = w.FirstPort + uint16(w.IntN(6))
			p.Last = p.First
		}
		r.Ports = append(r.Ports, p)
	}
	switch w.IntN(20) {
	case 0: // what a Deny becomes that has a peer of another release of the API
		r.Action, r.Rule = policy.Deny, policy.Rule{}
	case 1: // and an Accept
		r.Action, r.Rule = policy.Accept, policy.Rule{NoPeer: true}
	}
	return r
}
