package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

func policiesKind(c kubernetes.Interface) kind[*networkingv1.NetworkPolicy, policy.Policy] {
	return kind[*networkingv1.NetworkPolicy, policy.Policy]{
		name: "networkpolicies", object: &networkingv1.NetworkPolicy{}, client: from(c.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)),
		trim: ConvertPolicy,
	}
}

func namespacesKind(c kubernetes.Interface) kind[*corev1.Namespace, policy.Namespace] {
	return kind[*corev1.Namespace, policy.Namespace]{
		name: "namespaces", object: &corev1.Namespace{}, client: from(c.CoreV1().Namespaces()),
		trim: func(o *corev1.Namespace) *policy.Namespace {
			return &policy.Namespace{Name: o.Name, Labels: o.Labels, Terminating: o.DeletionTimestamp != nil}
		},
	}
}

func policyPodsKind(c kubernetes.Interface) kind[*corev1.Pod, policy.Pod] {
	return kind[*corev1.Pod, policy.Pod]{
		name: "pods", object: &corev1.Pod{}, client: from(c.CoreV1().Pods(metav1.NamespaceAll)),
		trim: ConvertPolicyPod,
	}
}

// Policies is a subscription to all that NetworkPolicies are about. Its Take replaces that of
// the Subscription.
type Policies struct {
	*Subscription
	store *Store
	// Guarded by Subscription.mu.
	pods, policies map[service.Name]bool
	namespaces     map[string]bool
}

// SubscribePolicies returns a subscription to NetworkPolicies, namespaces and all pods, which
// it waits for. They are read from then on.
func (s *Store) SubscribePolicies(consumer string) *Policies {
	v := &Policies{
		Subscription: s.subscribe(consumer), store: s,
		pods: map[service.Name]bool{}, policies: map[service.Name]bool{}, namespaces: map[string]bool{},
	}
	follow(v, s.policies, func(n service.Name) { v.policies[n] = true })
	follow(v, s.namespaces, func(n service.Name) { v.namespaces[n.Name] = true })
	follow(v, s.pods, func(n service.Name) { v.pods[n] = true })
	v.need([]input{s.policies.input(), s.namespaces.input(), s.pods.input()}, nil)
	return v
}

func follow[V any](v *Policies, f *Feed[V], mark func(service.Name)) {
	f.follow(func(name service.Name, _, _ *V, _ int64) {
		v.mu.Lock()
		defer v.mu.Unlock()
		mark(name)
		v.notifyLocked()
	})
	f.onSettle(v.check)
}

// Take returns what has changed since the last Take; what is gone is among it. It returns
// nothing before Synced.
func (v *Policies) Take() (d policy.Dirty) {
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
	clear(v.pods)
	clear(v.policies)
	clear(v.namespaces)
	return d
}

// Pod returns the pod of that name as it is now; nil: there is none.
func (v *Policies) Pod(name service.Name) *policy.Pod { return found(v.store.pods, name) }

// Policy returns the policy of that name as it is now; nil: there is none.
func (v *Policies) Policy(name service.Name) *policy.Policy { return found(v.store.policies, name) }

// Namespace returns the namespace of that name as it is now; nil: there is none.
func (v *Policies) Namespace(name string) *policy.Namespace {
	return found(v.store.namespaces, service.Name{Name: name})
}

func found[V any](f *Feed[V], name service.Name) *V {
	v, _ := f.Get(name)
	return v
}

// Cluster returns all objects as they are now.
func (v *Policies) Cluster() *policy.Cluster {
	c := &policy.Cluster{Pods: map[service.Name]*policy.Pod{}, Namespaces: map[string]*policy.Namespace{}, Policies: map[service.Name]*policy.Policy{}}
	for _, p := range v.store.pods.All() {
		c.Pods[p.Name] = p
	}
	for _, n := range v.store.namespaces.All() {
		c.Namespaces[n.Name] = n
	}
	for _, p := range v.store.policies.All() {
		c.Policies[p.Name] = p
	}
	return c
}

// OncePolicies reads all that NetworkPolicies are about, and ends: for commands that look once.
// It fails if ctx ends first.
func OncePolicies(ctx context.Context, cfg Config) (*policy.Cluster, error) {
	s := New(cfg)
	v := s.SubscribePolicies("command")
	reading, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(reading) }()
	defer func() { stop(); <-ended }()
	select {
	case <-v.Synced():
		return v.Cluster(), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the API server did not answer in time: %w [see --master, --kubeconfig and --timeout; reading pods takes the rights of deploy/components/network-policy]", context.Cause(ctx))
	}
}
