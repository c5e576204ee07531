package networkpolicy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

func policiesKind(c kubernetes.Interface) kube.Kind[*networkingv1.NetworkPolicy, networkpolicy.Policy] {
	return kube.Kind[*networkingv1.NetworkPolicy, networkpolicy.Policy]{
		Name: "networkpolicies", Object: &networkingv1.NetworkPolicy{}, Client: kube.From(c.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)),
		Trim: ConvertPolicy,
	}
}

func namespacesKind(c kubernetes.Interface) kube.Kind[*corev1.Namespace, api.Namespace] {
	return kube.Kind[*corev1.Namespace, api.Namespace]{
		Name: "namespaces", Object: &corev1.Namespace{}, Client: kube.From(c.CoreV1().Namespaces()),
		Trim: func(o *corev1.Namespace) *api.Namespace {
			return &api.Namespace{Name: o.Name, Labels: o.Labels, Terminating: o.DeletionTimestamp != nil}
		},
	}
}

func clusterPoliciesKind(s *kube.Store) kube.Kind[*unstructured.Unstructured, networkpolicy.ClusterPolicy] {
	return kube.Kind[*unstructured.Unstructured, networkpolicy.ClusterPolicy]{
		Name: kube.ClusterNetworkPolicies.Resource, Without: "ClusterNetworkPolicies are not enforced", Object: &unstructured.Unstructured{},
		Client: kube.From(s.Config().Custom.Resource(kube.ClusterNetworkPolicies)), Trim: ConvertClusterPolicy,
	}
}

// Policies is a subscription to the input of NetworkPolicies. Its Take replaces Subscription.Take.
type Policies struct {
	*kube.Subscription
	policies   *kube.Feed[networkpolicy.Policy]
	namespaces *kube.Feed[api.Namespace]
	pods       *kube.Feed[api.Pod]
	clusters   *kube.Feed[networkpolicy.ClusterPolicy] // nil: not read
	nodes      *kube.Feed[labelledNode]                // nil: not read
	// Nodes are read after the first ClusterNetworkPolicy with a node selector.
	followNodes sync.Once
	needNodes   atomic.Bool
	// peers decides about the addresses of nodes. It is nil before nodes are read.
	peers atomic.Pointer[kube.Claims]

	// podClaims decides about pods' addresses by their nodes' podCIDRs; nil: podCIDRs mean nothing.
	podClaims *kube.Claims
	// accepted and acceptedPeers are the last decisions, of Take.
	accepted, acceptedPeers *api.AcceptedNodes
	store                   *kube.Store

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu    sync.Mutex
	dirty dirtyNames
}

// dirtyNames are the names that have changed since the last Take, by kind.
type dirtyNames struct {
	pods, policies              map[api.Name]bool
	namespaces, clusters, nodes map[string]bool
}

func newDirtyNames() dirtyNames {
	return dirtyNames{map[api.Name]bool{}, map[api.Name]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// Subscribe returns a subscription to NetworkPolicies, namespaces and all pods, and waits for these lists. With
// Config.Custom it also reads ClusterNetworkPolicies. It waits for them until the API server refuses the kind, and reads
// them when the kind exists.
func Subscribe(s *kube.Store, consumer string) *Policies {
	client := s.Config().Client
	v := &Policies{
		Subscription: s.Subscribe(consumer), dirty: newDirtyNames(), store: s,
		policies: kube.Open(s, policiesKind(client)), namespaces: kube.Open(s, namespacesKind(client)), pods: s.PodFeed(),
	}
	all := []kube.Input{
		follow(v, v.policies, func(n api.Name) { v.dirty.policies[n] = true }),
		follow(v, v.namespaces, func(n api.Name) { v.dirty.namespaces[n.Name] = true }),
		follow(v, v.pods, func(n api.Name) { v.dirty.pods[n] = true }),
	}
	if s.Config().PodNetwork {
		v.podClaims = s.NodeClaims()
		s.NodeFeed().Follow(func(api.Name, *kube.Node, *kube.Node, int64) { v.Notify() })
		all = append(all, s.NodeFeed().Gates(v.Subscription))
	}
	if s.Config().Custom != nil {
		all = append(all, v.followClusters(s)...)
	}
	v.Need(all, nil)
	return v
}

// followClusters reads ClusterNetworkPolicies. The gate waits for a late list, because a start without it would open
// denied traffic. It does not wait for a refused list.
func (v *Policies) followClusters(s *kube.Store) []kube.Input {
	v.clusters = kube.Open(s, clusterPoliciesKind(s))
	v.nodes = kube.Open(s, kube.Kind[*corev1.Node, labelledNode]{
		Name: "nodes", Object: &corev1.Node{}, Client: kube.From(s.Config().Client.CoreV1().Nodes()), Trim: convertPolicyNode,
	})
	v.clusters.Follow(func(_ api.Name, _, now *networkpolicy.ClusterPolicy, _ int64) {
		if now.HasNodes() {
			v.needNodes.Store(true)
			// A feed must not be called while the lock of another feed is held.
			v.followNodes.Do(func() {
				go func() {
					v.peers.Store(kube.ClaimsOf(s, v.nodes, (*labelledNode).NodeClaims))
					follow(v, v.nodes, func(n api.Name) { v.dirty.nodes[n.Name] = true })
				}()
			})
		}
	})
	clusters := follow(v, v.clusters, func(n api.Name) { v.dirty.clusters[n.Name] = true })
	return []kube.Input{clusters.OrRefused(), v.nodes.Input().OnlyIf(v.needNodes.Load)}
}

// follow makes the subscription mark the changed names of a feed. It returns the feed's side of a gate.
func follow[V any](v *Policies, f *kube.Feed[V], mark func(api.Name)) kube.Input {
	f.Follow(func(name api.Name, _, _ *V, _ int64) {
		v.mu.Lock()
		mark(name)
		v.mu.Unlock()
		v.Notify()
	})
	return f.Gates(v.Subscription)
}

// Take returns the names that have changed since the last Take, including deleted objects. It returns no names before
// Synced. If a node's accepted claims have changed, the node and its pods count as changed.
func (v *Policies) Take() (d networkpolicy.Dirty) {
	select {
	case <-v.Synced():
	default:
		return d
	}
	v.mu.Lock()
	dirty := v.dirty
	v.dirty = newDirtyNames()
	v.mu.Unlock()
	v.addClaimed(&dirty)
	d.Pods = slices.Collect(maps.Keys(dirty.pods))
	d.Policies = slices.Collect(maps.Keys(dirty.policies))
	d.Namespaces = slices.Collect(maps.Keys(dirty.namespaces))
	d.ClusterPolicies = slices.Collect(maps.Keys(dirty.clusters))
	d.Nodes = slices.Collect(maps.Keys(dirty.nodes))
	return d
}

// addClaimed adds the nodes whose addresses count or do not count any more, and the pods of nodes whose podCIDRs do.
func (v *Policies) addClaimed(d *dirtyNames) {
	if v.podClaims != nil {
		was, now := v.accepted, v.podClaims.Now()
		if v.accepted = now; was != nil && was != now {
			for _, p := range v.pods.All() {
				if !slices.Equal(was.PodCIDRs(p.Node), now.PodCIDRs(p.Node)) {
					d.pods[p.Name] = true
				}
			}
		}
	}
	if peers := v.peers.Load(); peers != nil {
		was, now := v.acceptedPeers, peers.Now()
		if v.acceptedPeers = now; was != now {
			for _, n := range v.nodes.All() {
				if !slices.Equal(was.Owned(n.Name), now.Owned(n.Name)) {
					d.nodes[n.Name] = true
				}
			}
		}
	}
}

// Pod returns the current pod of that name with the addresses that it may have, or nil.
func (v *Policies) Pod(name api.Name) *api.Pod { return v.store.AcceptedPod(found(v.pods, name)) }

// Policy returns the current policy of that name, or nil.
func (v *Policies) Policy(name api.Name) *networkpolicy.Policy {
	return found(v.policies, name)
}

// Namespace returns the current namespace of that name, or nil.
func (v *Policies) Namespace(name string) *api.Namespace {
	return found(v.namespaces, api.Name{Name: name})
}

// ClusterPolicy returns the current ClusterNetworkPolicy of that name, or nil.
func (v *Policies) ClusterPolicy(name string) *networkpolicy.ClusterPolicy {
	return found(v.clusters, api.Name{Name: name})
}

// Node returns the current node of that name with the addresses that it may have, or nil. Nodes are only known if a
// policy selects nodes.
func (v *Policies) Node(name string) *networkpolicy.Node {
	n, peers := found(v.nodes, api.Name{Name: name}), v.peers.Load()
	if n == nil || peers == nil {
		return nil
	}
	return n.accepted(peers.Now())
}

func found[V any](f *kube.Feed[V], name api.Name) *V {
	if f == nil {
		return nil
	}
	v, _ := f.Get(name)
	return v
}

// Cluster returns all current objects.
func (v *Policies) Cluster() *networkpolicy.Cluster {
	c := networkpolicy.NewCluster()
	for _, p := range v.store.AcceptedPods() {
		c.Pods[p.Name] = p
	}
	for _, n := range v.namespaces.All() {
		c.Namespaces[n.Name] = n
	}
	for _, p := range v.policies.All() {
		c.Policies[p.Name] = p
	}
	if v.clusters == nil {
		return c
	}
	for _, p := range v.clusters.All() {
		c.ClusterPolicies[p.Name] = p
	}
	if peers := v.peers.Load(); peers != nil {
		for _, n := range v.nodes.All() {
			c.Nodes[n.Name] = n.accepted(peers.Now())
		}
	}
	return c
}

// Once reads the input of NetworkPolicies and ends, for commands that look once. It fails if ctx ends first.
func Once(ctx context.Context, cfg kube.Config) (*networkpolicy.Cluster, error) {
	s := kube.New(cfg)
	v := Subscribe(s, "command")
	err := s.ReadOnce(ctx, v.Synced(), "see --master, --kubeconfig and --timeout; reading pods takes the rights of deploy/components/network-policy")
	if err != nil {
		return nil, err
	}
	return v.Cluster(), nil
}
