package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func within(t *testing.T, n *testnet.Namespace, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Error(err)
	}
}

// TestOneAgent: a second agent on a node refuses to start, in every mode and without any
// port that the first one could hold, and so does --cleanup. Another node's agent does not
// matter, and the lock is free again when the first agent has ended.
func TestOneAgent(t *testing.T) {
	node, other := testnet.NewNamespace(t, "node"), testnet.NewNamespace(t, "other")
	within(t, node, func() error {
		lock, err := command.LockNode(t.Context())
		if err != nil {
			return err
		}
		defer lock.Release()
		want := fmt.Sprintf("another fairway agent, process %d, runs on this node\nhint: end it first", os.Getpid())
		for _, mode := range append(datapath.Modes(), datapath.Auto, datapath.None) {
			fails(t, want, "agent", "--master", "http://127.0.0.1:1", "--proxy-mode", mode, "--pod-network", "routes",
				"--cluster-cidr", "10.244.0.0/16", "--healthz-bind-address", "", "--metrics-bind-address", "")
			fails(t, want, "agent", "--cleanup", "--proxy-mode", mode)
		}
		within(t, other, func() error { prints(t, "", "agent", "--cleanup"); return nil })
		return nil
	})
	within(t, node, func() error { prints(t, "", "agent", "--cleanup"); return nil })
}

// TestOlderAgent: an agent of a version that has only the name of the socket keeps a second agent out.
func TestOlderAgent(t *testing.T) {
	within(t, testnet.NewNamespace(t, "node"), func() error {
		older, err := listener.Listen(status.Socket)
		if err != nil {
			return err
		}
		fails(t, fmt.Sprintf("another fairway agent, process %d, runs on this node\nhint: end it first", os.Getpid()), "agent", "--cleanup")
		_ = older.Close()
		prints(t, "", "agent", "--cleanup")
		return nil
	})
}

// TestNameOfAnotherUser: another user of the node who takes the name of the agent's socket neither stops an agent nor
// answers for it. There is still one agent only, and it answers as soon as the name is free.
func TestNameOfAnotherUser(t *testing.T) {
	log, node := &testnet.Log{}, testnet.NewNamespace(t, "node")
	within(t, node, func() error {
		var thief net.Listener
		var err error
		testnet.AsNobody(t, func() { thief, err = listener.Listen(status.Socket) })
		if err != nil {
			return err
		}
		prints(t, "", "agent", "--cleanup")
		lock, err := command.LockNode(t.Context())
		if err != nil {
			return err
		}
		defer lock.Release()
		if lock.Status != nil {
			t.Error("the name belongs to two")
		}
		fails(t, "another fairway agent runs on this node\nhint: end it first", "agent", "--cleanup")

		var taken *listener.TakenError
		if _, err := status.Ask(t.Context()); !errors.As(err, &taken) || taken.User != 65534 || taken.PID != int32(os.Getpid()) {
			t.Errorf("another user answers for the agent: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		serve := func() error {
			return status.Serve(ctx, slog.New(slog.NewTextHandler(log, nil)), lock.Status, func() status.Node { return status.Node{Node: "node-1"} })
		}
		go func() { done <- node.Do(serve) }()
		if err := log.Await(fmt.Sprintf("process %d of user 65534 has the socket @fairway/agent", os.Getpid()), 60*time.Second); err != nil {
			return err
		}
		_ = thief.Close()
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			n, err := status.Ask(ctx)
			if err == nil && n.Node == "node-1" {
				break
			}
			if time.Now().After(end) {
				t.Errorf("the agent does not answer: %v, %v", n, err)
				break
			}
		}
		stop()
		return <-done
	})
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
}

// TestOneSpeaker: a second speaker on a node refuses to start, and no cleanup removes the rules of a speaker that runs.
func TestOneSpeaker(t *testing.T) {
	within(t, testnet.NewNamespace(t, "node"), func() error {
		lock, err := fence.Lock(t.Context())
		if err != nil {
			return err
		}
		defer lock.Release()
		f, err := fence.Open(t.Context(), time.Second)
		if err != nil {
			return err
		}
		defer f.Close()
		for _, args := range [][]string{{"speaker", "--cleanup"}, {"speaker", "--master", "http://127.0.0.1:1"}} {
			fails(t, "another fairway speaker runs on this node: another process has the lock\nhint: end it first", args...)
		}
		tells(t, "kept the rules of the speaker, which runs", "agent", "--cleanup")
		if err := f.Ticket(t.Context(), 0); err != nil {
			t.Errorf("the rules: %v", err)
		}
		return nil
	})
}
