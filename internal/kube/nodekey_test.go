package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestPublishWireGuardKey: a key is written into the node's object, reaches the peers, and is removed again.
func TestPublishWireGuardKey(t *testing.T) {
	node := apiNode("node-1", "a")
	node.Annotations = map[string]string{"example.com/other": "stays"}
	client := fake.NewClientset(node)
	s := start(t, client, func(c *Config) { c.AllNodes = true })
	waitFor(t, s.Synced(), "Synced")
	watched(t, client, 3)
	for _, key := range []string{"cHVibGlj", "bmV3", ""} {
		if err := s.PublishWireGuardKey(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for n, _ := s.Node(); n.WireGuardKey != key; n, _ = s.Node() {
			waitFor(t, s.NodeChanged(), "the key "+key)
		}
	}
	gone := New(Config{Client: client, NodeName: "gone"})
	if err := gone.PublishWireGuardKey(t.Context(), "bmV3"); err == nil {
		t.Error("no error for a node that is not there")
	}
}

// TestClearNetworkUnavailable: the condition of this node becomes false, and others stay. A false condition is not written
// again.
func TestClearNetworkUnavailable(t *testing.T) {
	node := apiNode("node-1", "a")
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"},
	}
	client := fake.NewClientset(node)
	s := start(t, client, func(c *Config) { c.AllNodes = true })
	waitFor(t, s.Synced(), "Synced")
	watched(t, client, 3)
	if n, _ := s.Node(); !n.NetworkUnavailable {
		t.Fatal("the condition is not read")
	}
	if err := s.ClearNetworkUnavailable(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n, _ := s.Node(); n.NetworkUnavailable; n, _ = s.Node() {
		waitFor(t, s.NodeChanged(), "the condition")
	}
	got, err := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || len(got.Status.Conditions) != 2 || got.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("conditions %v, %v", got.Status.Conditions, err)
	}
	client.ClearActions()
	if err := s.ClearNetworkUnavailable(t.Context()); err != nil || len(client.Actions()) > 0 {
		t.Errorf("written again: %v, %v", client.Actions(), err)
	}
}
