package policytest

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// stepTiers changes a ClusterNetworkPolicy or a node.
func (w *World) stepTiers(to []*networkpolicy.Compiler) {
	if w.IntN(3) == 0 {
		n := &networkpolicy.Node{Name: pick(w, "n1", "n2", "n3"), Labels: w.labels()}
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

func (w *World) clusterPolicy(name string) *networkpolicy.ClusterPolicy {
	p := &networkpolicy.ClusterPolicy{Name: name, Tier: pick(w, networkpolicy.Admin, networkpolicy.Baseline), Priority: w.IntN(4), Subject: w.somePods()}
	for d := range p.Rules {
		for range w.IntN(5) {
			p.Rules[d] = append(p.Rules[d], w.clusterRule(networkpolicy.Direction(d)))
		}
	}
	return p
}

// somePods returns the pods that a ClusterNetworkPolicy selects: often all pods.
func (w *World) somePods() (p networkpolicy.Peer) {
	namespaces := w.selector()
	if p.Namespaces = &namespaces; w.IntN(2) == 0 {
		pods := w.selector()
		p.Pods = &pods
	}
	if w.IntN(3) == 0 {
		p = networkpolicy.Peer{Namespaces: &api.Selector{}}
	}
	return p
}

func (w *World) clusterRule(d networkpolicy.Direction) networkpolicy.ClusterRule {
	r := networkpolicy.ClusterRule{Action: pick(w, networkpolicy.Accept, networkpolicy.Deny, networkpolicy.Pass)}
	if w.IntN(4) == 0 {
		r.Name = fmt.Sprint("rule-", w.IntN(3))
	}
	named := true
	for range 1 + w.IntN(2) {
		switch w.IntN(4) {
		case 0:
			if d == networkpolicy.Egress {
				b := w.block()
				b.Except, named = nil, false
				r.Peers = append(r.Peers, networkpolicy.Peer{Block: b})
				continue
			}
		case 1:
			if d == networkpolicy.Egress {
				s := w.selector()
				named = false
				r.Peers = append(r.Peers, networkpolicy.Peer{Nodes: &s})
				continue
			}
		}
		r.Peers = append(r.Peers, w.somePods())
	}
	for range w.IntN(3) {
		p := networkpolicy.Port{Proto: pick(w, api.TCP, api.TCP, api.UDP, api.SCTP)}
		switch w.IntN(5) {
		case 0:
			if !named {
				continue // the API server refuses named ports for peers that are nodes or networks
			}
			p.Name = pick(w, "http", "dns")
			for _, p.Proto = range []api.Proto{api.TCP, api.UDP, api.SCTP} {
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
	case 0: // a Deny with a peer of another release of the API
		r.Action, r.Rule = networkpolicy.Deny, networkpolicy.Rule{}
	case 1: // an Accept with one
		r.Action, r.Rule = networkpolicy.Accept, networkpolicy.Rule{NoPeer: true}
	}
	return r
}
