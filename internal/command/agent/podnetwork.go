package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow/conntrack/share"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// podNetwork is the node's pod network, with the cluster's nodes as its peers.
type podNetwork struct {
	*kube.Subscription
	b      *base
	config node.Config
}

// newPodNetwork connects the pods of this node, and decides which pods leave the cluster with which address.
func newPodNetwork(b *base) part {
	n := podNetwork{b.store.SubscribeNodes("pod network"), b, podNetworkConfig(b.log, b.cfg)}
	n.config.Event, n.config.Registry, n.config.PolicySocket = b.events.NodeEvent, b.registry, policySocket(b.cfg)
	n.config.TablesChanged = b.tables.Changed(numbers.TablePods, numbers.TableEgress)
	n.config.Now = func(message string) { b.status.board.Set(status.PodNetworkProblem, message) }
	n.config.APIServers = func() []netip.Addr { return b.view().APIServers }
	n.config.ServiceCIDRs = b.store.ServiceCIDRs
	fragments, flows := twoWriters(func(message string) { b.status.board.Set(status.PodOverShare, message) })
	n.config.OverShare = fragments
	shares := share.Keeper{Log: b.log, Registry: b.registry, Pods: n.podCIDRs, Event: b.nodeEvent, Now: flows}
	n.config.PublishKey = func(ctx context.Context, k plan.Key) error { return b.store.PublishWireGuardKey(ctx, k.String()) }
	n.config.Ready = b.store.ClearNetworkUnavailable
	if !b.cfg.EgressAddresses {
		return func(ctx context.Context) error { return runAll(ctx, []part{n.run, shares.Run}) }
	}
	e := newEgressAddresses(b)
	n.config.Egress = e
	return func(ctx context.Context) error { return runAll(ctx, []part{e.run, n.run, shares.Run}) }
}

// Peers implements node.Nodes.
func (n podNetwork) Peers() []plan.Peer { return command.Peers(n.b.store.Nodes()) }

// podCIDRs returns the address ranges of this node's pods.
func (n podNetwork) podCIDRs() []netip.Prefix {
	for _, p := range n.b.store.Nodes() {
		if p.Name == n.b.cfg.NodeName {
			return p.PodCIDRs
		}
	}
	return nil
}

// twoWriters returns a function for each of two writers of one condition. The condition has the messages of both.
func twoWriters(set func(message string)) (first, second func(message string)) {
	var mu sync.Mutex
	var messages [2]string
	writer := func(i int) func(string) {
		return func(message string) {
			mu.Lock()
			defer mu.Unlock()
			messages[i] = message
			set(strings.Trim(strings.Join(messages[:], "; "), "; "))
		}
	}
	return writer(0), writer(1)
}

func (n podNetwork) run(ctx context.Context) error {
	return node.New(n.config).Run(ctx, n.b.cfg.NodeName, n, n.b.cfg.SyncPeriod)
}

// podNetworkConfig returns the settings of the pod network.
func podNetworkConfig(log *slog.Logger, cfg *config.Config) node.Config {
	return node.Config{
		Log: log, CNIBinDir: cfg.CNIBinDir, CNIConfDir: cfg.CNIConfDir, Masquerade: true,
		NonMasqueradeCIDRs: cfg.NonMasqueradeCIDRs, ClusterCIDRs: cfg.ClusterCIDRs, NodeName: cfg.NodeName,
		Fragments: cfg.PodFragments, EmptyAfter: cfg.EmptyAfter,
		Way: plan.Way(cfg.PodNetwork), RecordHostPorts: cfg.Mode != datapath.None,
		RIB: podroutes.Of(podroutes.DefaultDir, cfg.NodeName),
	}
}
