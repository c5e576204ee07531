package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestOneAgent: a second agent on a node refuses to start, in every mode and without any
// port that the first one could hold, and so does --cleanup. Another node's agent does not
// matter, and the lock is free again when the first agent has ended.
func TestOneAgent(t *testing.T) {
	inNode := func(n *testnet.Namespace, f func() error) {
		t.Helper()
		if err := n.Do(f); err != nil {
			t.Error(err)
		}
	}
	node, other := testnet.NewNamespace(t, "node"), testnet.NewNamespace(t, "other")
	inNode(node, func() error {
		lock, err := command.LockNode()
		if err != nil {
			return err
		}
		defer lock.Close()
		want := fmt.Sprintf("another fairway agent, process %d, runs on this node\nhint: end it first", os.Getpid())
		for _, mode := range append(datapath.Modes(), datapath.Auto, datapath.None) {
			fails(t, want, "agent", "--master", "http://127.0.0.1:1", "--proxy-mode", mode, "--pod-network", "routes",
				"--cluster-cidr", "10.244.0.0/16", "--healthz-bind-address", "", "--metrics-bind-address", "")
			fails(t, want, "agent", "--cleanup", "--proxy-mode", mode)
		}
		inNode(other, func() error { prints(t, "", "agent", "--cleanup"); return nil })
		return nil
	})
	inNode(node, func() error { prints(t, "", "agent", "--cleanup"); return nil })
}
