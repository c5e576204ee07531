package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/enforcer"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// policyDir is the directory of the sockets between CNI plugin and agent, in the node's file system and in the agent's.
// Several nodes of a lab share it.
const policyDir = "/run/fairway/policy"

// policySocket returns the socket that the CNI plugin asks. It returns "" if policies are off, or another program
// provides the pod network.
func policySocket(cfg *config.Config) string {
	if !cfg.NetworkPolicy || !cfg.ConnectsPods() {
		return ""
	}
	return nodeSocket(cfg.NodeName)
}

// nodeSocket returns the socket of an agent with the pod network and NetworkPolicies.
func nodeSocket(node string) string { return filepath.Join(policyDir, node+".sock") }

// newPolicies keeps NetworkPolicies in the kernel. Without --network-policy it removes what a previous agent enforced.
func newPolicies(b *base) part {
	var source *kubepolicy.Policies
	if b.cfg.NetworkPolicy {
		source = kubepolicy.Subscribe(b.store, "network policy")
	}
	return func(ctx context.Context) error {
		if source == nil {
			if err := removePolicies(ctx, b.log); err != nil {
				return err
			}
		}
		var parts []part
		if b.resets != nil {
			parts = append(parts, b.resets.Run)
		}
		if source != nil {
			parts = append(parts, func(ctx context.Context) error { return b.enforce(ctx, source) })
		}
		return runAll(ctx, parts)
	}
}

// enforce keeps the policies of source in the kernel until ctx ends.
func (b *base) enforce(ctx context.Context, source *kubepolicy.Policies) error {
	flows := conntrack.New(conntrack.Config{Log: b.log})
	defer flows.Close()
	rules := nftables.New()
	rules.Reject = b.cfg.NetworkPolicyReject
	e := enforcer.New(enforcer.Config{
		Log: b.log, Node: b.cfg.NodeName, Source: source, Table: rules, TablesChanged: b.tables.Changed(numbers.TablePolicy),
		Socket: policySocket(b.cfg), End: enforcer.EndAll(b.gate, flows, b.resets.Reset),
		EmptyAfter: b.cfg.EmptyAfter, ClusterEvent: func(p api.Problem) { b.events.Event(api.Name{Namespace: "default", Name: "kubernetes"}, p) },
		Event: b.events.PolicyEvent, LogDenied: b.cfg.NetworkPolicyLog, Metrics: enforcer.NewMetrics(b.registry),
	})
	b.gate.Decide(e.AllowsClient)
	return e.Run(ctx)
}

// removePolicies removes the rules of a previous agent that enforced NetworkPolicies. They would never be updated.
func removePolicies(ctx context.Context, log *slog.Logger) error {
	t := nftables.New()
	found, err := t.Found(ctx)
	if err == nil && found {
		log.Warn("a former agent enforced NetworkPolicies; this one removes its rules [--network-policy keeps them]")
		err = t.Delete(ctx)
	}
	t.Close()
	if err != nil {
		return fmt.Errorf("remove the rules of NetworkPolicies: %w", err)
	}
	return nil
}
