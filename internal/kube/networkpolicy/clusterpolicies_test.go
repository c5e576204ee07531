package networkpolicy

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
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

// A cluster without the kind ClusterNetworkPolicy does not delay the start. Policies count as soon as they exist,
// together with the nodes that they select.
func TestClusterPolicies(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{"a": "b"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}, {Type: corev1.NodeHostName, Address: "node-2"}}}}
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.ClusterNetworkPolicies: "ClusterNetworkPolicyList"})
	var installed atomic.Bool
	custom.PrependReactor("list", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		if installed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewNotFound(kube.ClusterNetworkPolicies.GroupResource(), "")
	})
	client := fake.NewClientset(node)
	v := subscribeAndRun(t, kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1", Custom: custom}))
	waitFor(t, v.Synced(), "Synced")
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "nodes" {
			t.Error("nodes are read, and no policy asks for any")
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kube.ClusterNetworkPolicies.GroupVersion().String(), "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": "nodes"},
		"spec": map[string]any{"tier": "Admin", "priority": int64(1), "subject": map[string]any{"namespaces": map[string]any{}},
			"egress": []any{map[string]any{"action": "Deny", "to": []any{map[string]any{"nodes": map[string]any{}}}}}},
	}}
	if _, err := custom.Resource(kube.ClusterNetworkPolicies).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
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

// A list that fails is waited for, because a start without it would allow the connections that it denies.
func TestClusterPoliciesAreWaitedFor(t *testing.T) {
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.ClusterNetworkPolicies: "ClusterNetworkPolicyList"})
	answer, asked := make(chan struct{}), make(chan struct{}, 100)
	custom.PrependReactor("list", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked <- struct{}{}
		<-answer
		return false, nil, nil
	})
	v := subscribeAndRun(t, kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), NodeName: "node-1", Custom: custom}))
	<-asked
	for _, in := range []kube.Input{v.pods.Input(), v.policies.Input(), v.namespaces.Input()} {
		for !in.Listed() {
			time.Sleep(time.Millisecond)
		}
	}
	select {
	case <-v.Synced():
		t.Error("it does not wait for the list")
	case <-time.After(100 * time.Millisecond): // the gate was checked when the last of the lists arrived
	}
	close(answer)
	waitFor(t, v.Synced(), "Synced")
}

// subscribeAndRun returns a subscription to policies of a running store.
func subscribeAndRun(t *testing.T, s *kube.Store) *Policies {
	v := Subscribe(s, "test")
	runUntilEnd(t, s)
	return v
}
