package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/kube"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/enforcer"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// policyDir is the directory of the sockets between CNI plugin and agent, in the node's file system and in the agent's.
// Several nodes of a lab share it.
const policyDir = "/run/fairway/policy"

// policySocket returns the socket that the CNI plugin asks. It returns "" if policies are off, or another program
// provides the pod network.
func (a *agent) policySocket() string {
	if !a.cfg.NetworkPolicy || !a.cfg.ConnectsPods() {
		return ""
	}
	return a.nodeSocket()
}

// nodeSocket returns the socket of an agent with the pod network and NetworkPolicies.
func (a *agent) nodeSocket() string { return filepath.Join(policyDir, a.cfg.NodeName+".sock") }

// enforce keeps NetworkPolicies in the kernel until ctx ends, if --network-policy is set. resets is the proxy's, or
// nil.
func (a *agent) enforce(ctx context.Context, store *kube.Store, resets *reset.Resetter, events *kube.Recorder, registry *prometheus.Registry) error {
	if !a.cfg.NetworkPolicy {
		if err := a.removePolicies(ctx); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if resets == nil && a.cfg.NetworkPolicy {
		resets = reset.New(reset.Config{Log: a.log, Flows: conntrack.New(conntrack.Config{Log: a.log})})
	}
	if resets != nil {
		g.Go(func() error { return resets.Run(ctx) })
	}
	if a.cfg.NetworkPolicy {
		source := kubepolicy.Subscribe(store, "network policy")
		g.Go(func() error {
			flows := conntrack.New(conntrack.Config{Log: a.log})
			defer flows.Close()
			rules := nftables.New()
			rules.Reject = a.cfg.NetworkPolicyReject
			e := enforcer.New(enforcer.Config{
				Log: a.log, Node: a.cfg.NodeName, Source: source, Table: rules,
				Socket: a.policySocket(), End: enforcer.EndAll(a.gate, flows, resets.Reset),
				Event: events.PolicyEvent, LogDenied: a.cfg.NetworkPolicyLog, Metrics: enforcer.NewMetrics(registry),
			})
			a.gate.Decide(e.AllowsClient)
			return e.Run(ctx)
		})
	}
	return g.Wait()
}

// removePolicies removes the rules of a previous agent that enforced NetworkPolicies. They would never be updated.
func (a *agent) removePolicies(ctx context.Context) error {
	t := nftables.New()
	found, err := t.Found(ctx)
	if err == nil && found {
		a.log.Warn("a former agent enforced NetworkPolicies; this one removes its rules [--network-policy keeps them]")
		err = t.Delete(ctx)
	}
	t.Close()
	if err != nil {
		return fmt.Errorf("remove the rules of NetworkPolicies: %w", err)
	}
	return nil
}
