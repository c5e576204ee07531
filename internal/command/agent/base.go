package agent

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/node/obstacles"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
)

// base is what the parts of a run have in common.
type base struct {
	cfg      *config.Config
	log      *slog.Logger
	version  string
	store    *kube.Store
	events   *kube.Recorder
	registry *prometheus.Registry
	status   *agentStatus
	view     func() service.Node // the node's own settings and addresses
	peers    *liveness.Follower  // dead nodes, as this node's speaker reports them
	gate     *flow.Gate          // nil without --network-policy
	resets   *reset.Resetter     // nil if nothing ends connections
	tables   *nft.Monitor        // hears of other programs' changes of the node's tables
}

// A part of a run ends with its context. An error of one part ends the run.
type part func(context.Context) error

// runAll runs parts until ctx or one of them ends.
func runAll(ctx context.Context, parts []part) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}

// newBase opens the way to the API server. dp is nil in mode none.
func (a *agent) newBase(says *agentStatus, dp datapath.Datapath) (*base, error) {
	client, custom, err := kube.ConnectBoth(a.connection())
	if err != nil {
		return nil, err
	}
	b := &base{cfg: a.cfg, log: a.log, version: a.env.Version, status: says, peers: liveness.NewFollower(), gate: a.gate, tables: &nft.Monitor{}}
	b.events = kube.NewRecorder(a.log, client, a.cfg.NodeName)
	b.store = kube.New(kube.Config{
		Log: a.log, Client: client, Custom: custom, NodeName: a.cfg.NodeName, AllNodes: a.cfg.ConnectsPods(),
		PodNetwork: a.cfg.ConnectsPods(), ClusterCIDRs: a.cfg.ClusterCIDRs,
		EmptyAfter: a.cfg.EmptyAfter, Problem: b.events.Event,
	})
	says.store = b.store
	b.registry = command.NewRegistry(b.store, NewDeadNodes(b.peers))
	var unsupported service.Algorithms
	if dp != nil {
		unsupported = ^dp.Info().Capabilities.Algorithms
	}
	b.view = a.cfg.View(b.store, unsupported)
	if dp != nil || a.cfg.NetworkPolicy {
		b.resets = reset.New(reset.Config{Log: a.log, Flows: conntrack.New(conntrack.Config{Log: a.log})})
	}
	return b, nil
}

// facts combines the node with the dead nodes.
func (b *base) facts() service.Facts { return service.Facts{Node: b.view(), Dead: b.peers.Dead()} }

// nodeEvent reports an event of this node.
func (b *base) nodeEvent(reason, message string) { b.events.NodeEvent(b.cfg.NodeName, reason, message) }

// newObstacles watches for obstacles outside of Fairway: foreign firewalls, and a full conntrack table.
func newObstacles(b *base) part {
	watcher := obstacles.Watcher{
		Pods: func() []netip.Prefix { return b.view().Settings.Pods },
		Log:  b.log, Registry: b.registry, Event: b.nodeEvent,
		Now: func(message string) { b.status.board.Set(status.ForwardingDropped, message) },
	}
	room := conntrack.Room{
		Log: b.log, Registry: b.registry, Event: b.nodeEvent,
		Now: func(message string) { b.status.board.Set(status.ConntrackFull, message) },
	}
	return func(ctx context.Context) error { return runAll(ctx, []part{watcher.Run, room.Run}) }
}

// monitorTables runs the Monitor of the node's tables.
func (b *base) monitorTables(ctx context.Context) error {
	return command.MonitorTables(ctx, b.log, b.tables)
}

// newHealthServer builds the server of the health and metrics ports.
func newHealthServer(b *base) *health.Server {
	return health.New(health.Config{
		Log: b.log, Healthz: b.cfg.Healthz, Metrics: b.cfg.Metrics, State: b.status.state,
		Eligible: b.status.eligible, NotEligible: b.status.notEligible, Status: b.status.public,
		PortInUse: func(err error) { b.status.board.Set(status.PortInUse, text(err)) },
		Families:  []string{"IPv4", "IPv6"},
		ProxyMode: b.cfg.Mode, Version: b.version, Registry: b.registry, Wait: b.cfg.ReplaceKubeProxy,
	})
}
