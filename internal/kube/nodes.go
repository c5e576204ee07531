package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/service"
)

func (s *Store) nodesKind(c kubernetes.Interface) kind[*corev1.Node, Node] {
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.NodeName).String()
	if s.cfg.AllNodes {
		own = ""
	}
	return kind[*corev1.Node, Node]{
		name: "nodes", object: &corev1.Node{}, client: from(c.CoreV1().Nodes()),
		only: metav1.ListOptions{FieldSelector: own},
		trim: func(o *corev1.Node) *Node {
			n := ConvertNode(o)
			return &n
		},
		without: "the node's zone, addresses and podCIDRs count as unknown",
		listed: func(*Feed[Node]) {
			if _, known := s.Node(); !known {
				s.cfg.Log.Warn("the API server does not know this node; it has no zone, addresses and podCIDRs until it does [is --hostname-override right?]",
					"node", s.cfg.NodeName)
			}
		},
		replaced: func(n *Node) {
			for _, p := range n.Problems {
				s.cfg.Log.Warn("a part of a node is invalid and left out", "node", n.Name, "reason", p.Reason, "problem", p.Message)
			}
		},
	}
}

// SubscribeNodes returns a subscription to the nodes, which it waits for, and to the
// ServiceCIDRs, which it waits for but a moment. Dirty names are those of both.
func (s *Store) SubscribeNodes(consumer string) *Subscription {
	sub := s.subscribe(consumer)
	sub.need([]input{s.nodes.marks(sub)}, []input{s.ranges.marks(sub)})
	return sub
}

// Node returns the node we run on, if the API server knows it. Nodes are read
// only while there is a subscription to nodes or Services.
func (s *Store) Node() (Node, bool) {
	n, ok := s.nodes.Get(service.Name{Name: s.cfg.NodeName})
	if !ok {
		return Node{}, false
	}
	return *n, true
}

// Nodes returns all nodes that are watched, sorted by name.
func (s *Store) Nodes() []Node {
	all := s.nodes.All()
	out := make([]Node, len(all))
	for i, n := range all {
		out[i] = *n
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}
