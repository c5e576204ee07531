package kube

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A cluster without ClusterNetworkPolicies holds nothing up. They count as soon as there are some,
// and the nodes that they ask for with them.
func TestClusterPolicies(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{"a": "b"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}, {Type: corev1.NodeHostName, Address: "node-2"}}}}
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{clusterPolicies: "ClusterNetworkPolicyList"})
	var installed atomic.Bool
	custom.PrependReactor("list", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		if installed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewNotFound(clusterPolicies.GroupResource(), "")
	})
	client := fake.NewClientset(node)
	v := New(Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1", Custom: custom}).subscribeAndRun(t)
	waitFor(t, v.Synced(), "Synced")
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "nodes" {
			t.Error("nodes are read, and no policy asks for any")
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterPolicies.GroupVersion().String(), "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": "nodes"},
		"spec": map[string]any{"tier": "Admin", "priority": int64(1), "subject": map[string]any{"namespaces": map[string]any{}},
			"egress": []any{map[string]any{"action": "Deny", "to": []any{map[string]any{"nodes": map[string]any{}}}}}},
	}}
	if _, err := custom.Resource(clusterPolicies).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	installed.Store(true)
	for deadline := time.Now().Add(time.Minute); v.ClusterPolicy("nodes") == nil || v.Node("node-2") == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: the policy %+v and its node %+v", v.ClusterPolicy("nodes"), v.Node("node-2"))
		}
	}
	if n := v.Node("node-2"); len(n.Addrs) != 1 || n.Labels["a"] != "b" {
		t.Errorf("%+v", n)
	}
	if c := v.Cluster(); c.ClusterPolicies["nodes"] == nil || c.Nodes["node-2"] == nil {
		t.Errorf("the cluster lacks them: %+v", c)
	}
	seen := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); !seen["policy nodes"] || !seen["node node-2"]; time.Sleep(5 * time.Millisecond) {
		d := v.Take()
		for _, n := range d.ClusterPolicies {
			seen["policy "+n] = true
		}
		for _, n := range d.Nodes {
			seen["node "+n] = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("never dirty: %v", seen)
		}
	}
}

// A list that does not come is waited for: to begin without it would open what it denies.
func TestClusterPoliciesAreWaitedFor(t *testing.T) {
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{clusterPolicies: "ClusterNetworkPolicyList"})
	answer, asked := make(chan struct{}), make(chan struct{}, 100)
	custom.PrependReactor("list", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked <- struct{}{}
		<-answer
		return false, nil, nil
	})
	v := New(Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), NodeName: "node-1", Custom: custom}).subscribeAndRun(t)
	<-asked
	for _, f := range []func() int32{v.store.pods.progress.Load, v.store.policies.progress.Load, v.store.namespaces.progress.Load} {
		for f() != listed {
			time.Sleep(time.Millisecond)
		}
	}
	waits := func(in input) bool { return in.kind == clusterPolicies.Resource && in.progress() != listed }
	if v.mu.Lock(); !slices.ContainsFunc(v.required, waits) || v.ready {
		t.Error("it does not wait for the list")
	}
	v.mu.Unlock()
	close(answer)
	waitFor(t, v.Synced(), "Synced")
}

// subscribeAndRun returns a subscription to policies of a store that runs.
func (s *Store) subscribeAndRun(t *testing.T) *Policies {
	v := s.SubscribePolicies("test")
	runUntilEnd(t, s)
	return v
}
