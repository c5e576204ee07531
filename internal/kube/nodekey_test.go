package kube

import (
	"testing"

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
