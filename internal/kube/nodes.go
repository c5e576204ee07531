package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
)

func (s *Store) nodesKind(c kubernetes.Interface) Kind[*corev1.Node, Node] {
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.NodeName).String()
	if s.cfg.AllNodes {
		own = ""
	}
	return Kind[*corev1.Node, Node]{
		Name: "nodes", Object: &corev1.Node{}, Client: From(c.CoreV1().Nodes()),
		Only: metav1.ListOptions{FieldSelector: own},
		Trim: func(o *corev1.Node) *Node {
			n := ConvertNode(o)
			return &n
		},
		Without: "the node's zone, addresses and podCIDRs count as unknown",
		Listed: func(*Feed[Node]) {
			if _, known := s.Node(); !known && s.cfg.NodeName != "" {
				s.cfg.Log.Warn("the API server does not know this node; it has no zone, addresses and podCIDRs until it does [is --hostname-override right?]",
					"node", s.cfg.NodeName)
			}
		},
		Replaced: func(n *Node) {
			if n.Name == s.cfg.NodeName {
				s.lastNode.Store(n.withLast(s.lastNode.Load()))
			}
			for _, p := range n.Problems {
				s.cfg.Log.Warn("a part of a node is invalid and left out", "node", n.Name, "reason", p.Reason, "problem", p.Message)
			}
		},
	}
}

// SubscribeNodes returns a subscription to the nodes, which it waits for, and to the ServiceCIDRs, which are optional.
// Dirty names are the names of both kinds.
func (s *Store) SubscribeNodes(consumer string) *Subscription {
	sub := s.Subscribe(consumer)
	sub.Need([]Input{s.nodes.Marks(sub)}, []Input{s.ranges.Marks(sub)})
	return sub
}

// Node returns our own node, if the API server has ever known it. The object may be deleted and created again, at first
// without addresses: missing fields keep their last values. Without an object the node is not Eligible. Nodes are read
// only while there is a subscription to nodes or Services.
func (s *Store) Node() (Node, bool) {
	last := s.lastNode.Load()
	if n, ok := s.nodes.Get(api.Name{Name: s.cfg.NodeName}); ok {
		return *n.withLast(last), true
	}
	if last == nil {
		return Node{}, false
	}
	gone := *last
	gone.Eligible = false
	return gone, true
}

// withLast returns n. Missing addresses and podCIDRs are taken from last, which may be nil.
func (n *Node) withLast(last *Node) *Node {
	if last == nil || len(n.Addrs) > 0 && len(n.PodCIDRs) > 0 {
		return n
	}
	full := *n
	if len(n.Addrs) == 0 {
		full.Addrs, full.Internal = last.Addrs, last.Internal
	}
	if len(n.PodCIDRs) == 0 {
		full.PodCIDRs = last.PodCIDRs
	}
	return &full
}

// ownNodeChanged logs that our Node object is gone. The lock of the feed is held.
func (s *Store) ownNodeChanged(name api.Name, _, n *Node, _ int64) {
	if name.Name == s.cfg.NodeName && n == nil {
		s.cfg.Log.Warn("this node's object is gone from the API server; its last addresses, zone and podCIDRs count until there is another", "node", name.Name)
	}
}

// Nodes returns all nodes that are watched, sorted by name. Our own node is in the list as Node returns it.
func (s *Store) Nodes() []Node {
	all := s.nodes.All()
	out := make([]Node, 0, len(all)+1)
	for _, n := range all {
		if n.Name != s.cfg.NodeName {
			out = append(out, *n)
		}
	}
	if own, ok := s.Node(); ok {
		out = append(out, own)
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}
