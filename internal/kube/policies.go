package kube

import (
	"context"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

func policiesKind(c kubernetes.Interface) kind[*networkingv1.NetworkPolicy, networkpolicy.Policy] {
	return kind[*networkingv1.NetworkPolicy, networkpolicy.Policy]{
		name: "networkpolicies", object: &networkingv1.NetworkPolicy{}, client: from(c.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)),
		trim: ConvertPolicy,
	}
}

func namespacesKind(c kubernetes.Interface) kind[*corev1.Namespace, api.Namespace] {
	return kind[*corev1.Namespace, api.Namespace]{
		name: "namespaces", object: &corev1.Namespace{}, client: from(c.CoreV1().Namespaces()),
		trim: func(o *corev1.Namespace) *api.Namespace {
			return &api.Namespace{Name: o.Name, Labels: o.Labels, Terminating: o.DeletionTimestamp != nil}
		},
	}
}

func policyPodsKind(c kubernetes.Interface) kind[*corev1.Pod, api.Pod] {
	return kind[*corev1.Pod, api.Pod]{
		name: "pods", object: &corev1.Pod{}, client: from(c.CoreV1().Pods(metav1.NamespaceAll)),
		trim: ConvertPolicyPod,
	}
}

// clusterPolicies is the resource of ClusterNetworkPolicies.
var clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies"}

func clusterPoliciesKind(s *Store) kind[*unstructured.Unstructured, networkpolicy.ClusterPolicy] {
	return kind[*unstructured.Unstructured, networkpolicy.ClusterPolicy]{
		name: clusterPolicies.Resource, without: "ClusterNetworkPolicies are not enforced", object: &unstructured.Unstructured{},
		client: from(s.cfg.Custom.Resource(clusterPolicies)), trim: ConvertClusterPolicy,
	}
}

// Policies is a subscription to the input of NetworkPolicies. Its Take replaces Subscription.Take.
type Policies struct {
	*Subscription
	store   *Store
	cluster *Feed[networkpolicy.ClusterPolicy] // nil: not read
	// nodes are read after the first ClusterNetworkPolicy with a node selector.
	nodes     *Feed[networkpolicy.Node]
	askNodes  sync.Once
	needNodes atomic.Bool
	// Guarded by Subscription.mu.
	pods, policies                map[api.Name]bool
	namespaces, clusters, nodeSet map[string]bool
}

// SubscribePolicies returns a subscription to NetworkPolicies, namespaces and all pods, and waits for these lists. With
// Config.Custom it also reads ClusterNetworkPolicies. It waits for them until the API server refuses the kind, and
// reads them when the kind exists.
func (s *Store) SubscribePolicies(consumer string) *Policies {
	v := &Policies{
		Subscription: s.subscribe(consumer), store: s,
		pods: map[api.Name]bool{}, policies: map[api.Name]bool{},
		namespaces: map[string]bool{}, clusters: map[string]bool{}, nodeSet: map[string]bool{},
	}
	follow(v, s.policies, func(n api.Name) { v.policies[n] = true })
	follow(v, s.namespaces, func(n api.Name) { v.namespaces[n.Name] = true })
	follow(v, s.pods, func(n api.Name) { v.pods[n] = true })
	all := []input{s.policies.input(), s.namespaces.input(), s.pods.input()}
	if s.cfg.Custom != nil {
		all = append(all, v.followCluster()...)
	}
	v.need(all, nil)
	return v
}

// followCluster reads ClusterNetworkPolicies. The gate waits for a late list, because a start without it would open
// denied traffic. It does not wait for a refused list.
func (v *Policies) followCluster() []input {
	s := v.store
	v.cluster = open(s, clusterPoliciesKind(s))
	v.nodes = open(s, kind[*corev1.Node, networkpolicy.Node]{
		name: "nodes", object: &corev1.Node{}, client: from(s.cfg.Client.CoreV1().Nodes()), trim: convertPolicyNode,
	})
	v.cluster.follow(func(name api.Name, _, now *networkpolicy.ClusterPolicy, _ int64) {
		if now.HasNodes() {
			v.needNodes.Store(true)
			// A feed must not be called while the lock of another feed is held.
			v.askNodes.Do(func() { go follow(v, v.nodes, func(n api.Name) { v.nodeSet[n.Name] = true }) })
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.clusters[name.Name] = true
		v.notifyLocked()
	})
	v.cluster.onSettle(v.check)
	cluster, nodes := v.cluster.input(), v.nodes.input()
	cluster.progress = func() int32 {
		if v.cluster.progress.Load() == refused {
			return listed
		}
		return v.cluster.progress.Load()
	}
	nodes.progress = func() int32 {
		if !v.needNodes.Load() {
			return listed
		}
		return v.nodes.progress.Load()
	}
	return []input{cluster, nodes}
}

func follow[V any](v *Policies, f *Feed[V], mark func(api.Name)) {
	f.follow(func(name api.Name, _, _ *V, _ int64) {
		v.mu.Lock()
		defer v.mu.Unlock()
		mark(name)
		v.notifyLocked()
	})
	f.onSettle(v.check)
}

// Take returns the names that have changed since the last Take, including deleted objects. It returns no names before
// Synced.
func (v *Policies) Take() (d networkpolicy.Dirty) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.ready {
		return d
	}
	for n := range v.pods {
		d.Pods = append(d.Pods, n)
	}
	for n := range v.policies {
		d.Policies = append(d.Policies, n)
	}
	for n := range v.namespaces {
		d.Namespaces = append(d.Namespaces, n)
	}
	for n := range v.clusters {
		d.ClusterPolicies = append(d.ClusterPolicies, n)
	}
	for n := range v.nodeSet {
		d.Nodes = append(d.Nodes, n)
	}
	clear(v.pods)
	clear(v.policies)
	clear(v.namespaces)
	clear(v.clusters)
	clear(v.nodeSet)
	return d
}

// Pod returns the current pod of that name, or nil.
func (v *Policies) Pod(name api.Name) *api.Pod { return found(v.store.pods, name) }

// Policy returns the current policy of that name, or nil.
func (v *Policies) Policy(name api.Name) *networkpolicy.Policy {
	return found(v.store.policies, name)
}

// Namespace returns the current namespace of that name, or nil.
func (v *Policies) Namespace(name string) *api.Namespace {
	return found(v.store.namespaces, api.Name{Name: name})
}

// ClusterPolicy returns the current ClusterNetworkPolicy of that name, or nil.
func (v *Policies) ClusterPolicy(name string) *networkpolicy.ClusterPolicy {
	return found(v.cluster, api.Name{Name: name})
}

// Node returns the current node of that name, or nil. Nodes are only known if a policy selects nodes.
func (v *Policies) Node(name string) *networkpolicy.Node {
	return found(v.nodes, api.Name{Name: name})
}

func found[V any](f *Feed[V], name api.Name) *V {
	if f == nil {
		return nil
	}
	v, _ := f.Get(name)
	return v
}

// Cluster returns all current objects.
func (v *Policies) Cluster() *networkpolicy.Cluster {
	c := networkpolicy.NewCluster()
	for _, p := range v.store.pods.All() {
		c.Pods[p.Name] = p
	}
	for _, n := range v.store.namespaces.All() {
		c.Namespaces[n.Name] = n
	}
	for _, p := range v.store.policies.All() {
		c.Policies[p.Name] = p
	}
	if v.cluster == nil {
		return c
	}
	for _, p := range v.cluster.All() {
		c.ClusterPolicies[p.Name] = p
	}
	for _, n := range v.nodes.All() {
		c.Nodes[n.Name] = n
	}
	return c
}

// OncePolicies reads the input of NetworkPolicies and ends, for commands that look once. It fails if ctx ends first.
func OncePolicies(ctx context.Context, cfg Config) (*networkpolicy.Cluster, error) {
	s := New(cfg)
	v := s.SubscribePolicies("command")
	err := s.readOnce(ctx, v.Synced(), "see --master, --kubeconfig and --timeout; reading pods takes the rights of deploy/components/network-policy")
	if err != nil {
		return nil, err
	}
	return v.Cluster(), nil
}
