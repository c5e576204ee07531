package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// An Edge is a subscription for a load balancer outside the cluster: to Services of type LoadBalancer, to the nodes,
// and, if it sends packets to pods, to EndpointSlices. It waits for all of these lists. Dirty names are the names of
// Services. A change of a node wakes the consumer without a name.
type Edge struct {
	Services
	nodes *Feed[EdgeNode]
}

// An EdgeNode is a node as a load balancer outside the cluster needs it.
type EdgeNode struct {
	service.Instance
	Node
}

// SubscribeEdge returns a subscription to the Services of a loadBalancerClass; empty: the Services without a class.
// With pods it also reads EndpointSlices.
func (s *Store) SubscribeEdge(class string, pods bool) *Edge {
	c := s.cfg.Client
	v := &Edge{Services: Services{Subscription: s.Subscribe("edge"), store: s, feed: Open(s, edgeServicesKind(c, class))}}
	v.nodes = Open(s, Kind[*corev1.Node, EdgeNode]{
		Name: "nodes", Object: &corev1.Node{}, Client: From(c.CoreV1().Nodes()), Trim: convertEdgeNode,
	})
	v.feed.Follow(v.serviceChanged)
	v.nodes.Follow(func(api.Name, *EdgeNode, *EdgeNode, int64) { v.Notify() })
	needs := []Input{v.feed.Input(), v.nodes.Input()}
	v.feed.OnSettle(v.Check)
	v.nodes.OnSettle(v.Check)
	if pods {
		s.slices.Follow(v.sliceChanged)
		s.slices.OnSettle(v.Check)
		needs = append(needs, s.slices.Input())
	}
	v.Need(needs, nil)
	return v
}

// edgeServicesKind reads Services of type LoadBalancer, including the Services of other proxies in the cluster.
func edgeServicesKind(c kubernetes.Interface, class string) Kind[*corev1.Service, service.Service] {
	return Kind[*corev1.Service, service.Service]{
		Name: "services", Object: &corev1.Service{}, Client: From(c.CoreV1().Services(metav1.NamespaceAll)),
		Only: metav1.ListOptions{FieldSelector: "spec.type=" + string(corev1.ServiceTypeLoadBalancer)},
		Trim: func(o *corev1.Service) *service.Service { return convertEdgeService(o, class) },
	}
}

// convertEdgeService works as ConvertService does, but keeps all addresses of the load balancer. It returns nil for a
// Service of another class.
func convertEdgeService(o *corev1.Service, class string) *service.Service {
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer || deref(o.Spec.LoadBalancerClass, "") != class {
		return nil
	}
	svc := ConvertService(o)
	var bad Problems
	var texts []string
	for _, i := range o.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			texts = append(texts, i.IP)
		}
	}
	svc.BalancerIPs = addrs(texts, "InvalidLoadBalancerIP", "load balancer address", &bad)
	internService(svc)
	return svc
}

func convertEdgeNode(o *corev1.Node) *EdgeNode {
	n := &EdgeNode{Node: ConvertNode(o)}
	n.Instance = service.Instance{Name: o.Name, Addrs: n.Node.Addrs, Excluded: Excluded(o)}
	return n
}

// SubscribeNodes returns a subscription to the nodes only.
func (v *Edge) SubscribeNodes(consumer string) *Subscription {
	sub := v.store.Subscribe(consumer)
	sub.Need([]Input{v.nodes.Marks(sub)}, nil)
	return sub
}

// Instances returns the nodes as balancers see them, sorted by name.
func (v *Edge) Instances() []service.Instance {
	var all []service.Instance
	for _, n := range v.sorted() {
		all = append(all, n.Instance)
	}
	return all
}

// Nodes returns the nodes, sorted by name.
func (v *Edge) Nodes() []Node {
	var all []Node
	for _, n := range v.sorted() {
		all = append(all, n.Node)
	}
	return all
}

func (v *Edge) sorted() []*EdgeNode {
	all := v.nodes.All()
	slices.SortFunc(all, func(a, b *EdgeNode) int { return strings.Compare(a.Instance.Name, b.Instance.Name) })
	return all
}

// InCluster returns the nodes' addresses and the pods' ranges.
func (v *Edge) InCluster() (nodes []netip.Addr, pods []netip.Prefix) {
	for _, n := range v.sorted() {
		nodes, pods = append(nodes, n.Instance.Addrs...), append(pods, n.PodCIDRs...)
	}
	return nodes, pods
}
