// Package edge is `fairway edge`: it joins the parts of a load balancer outside of the cluster. The kernel's rules stay when
// the program ends.
package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/loadbalancer/edge"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
)

// New builds `fairway edge`: the load balancer on a machine outside of the cluster.
func New(e command.Env) *cobra.Command {
	var path string
	var check, cleanup bool
	var format *command.LogFormat
	c := &cobra.Command{
		Use:   "edge",
		Short: "Be the cluster's load balancer, on a machine outside of it",
		Long: `Be the cluster's load balancer, on a machine outside of it: take connections to the
addresses of Services of type LoadBalancer to nodes' ports, or straight to pods. Nodes are
asked whether they can serve, as clouds' balancers do. It only reads from the API server. On
SIGTERM it ends and leaves its rules in place: connections, open and new ones, outlive a
restart.`,
		Example: `  fairway edge --config /etc/fairway/edge.yaml --check
  fairway edge --config /etc/fairway/edge.yaml
  fairway edge --config /etc/fairway/edge.yaml --cleanup    remove everything from this machine`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if path == "" {
				return errors.New("--config is missing [name a file; docs/edge.md has an example]")
			}
			cfg, err := edge.Load(path)
			if err != nil {
				return err
			}
			log, err := format.Logger(e.Stderr, "edge")
			if err != nil {
				return err
			}
			m := &edgeMachine{cfg: cfg, log: log, env: e}
			switch {
			case check:
				if err := m.check(c.Context()); err != nil {
					return err
				}
				fmt.Fprintf(e.Stdout, "%s: valid\n", path)
				return nil
			case cleanup:
				return m.cleanup(c.Context())
			}
			return m.run(c.Context())
		},
	}
	format = command.NewLogFormat(c)
	f := c.Flags()
	f.StringVar(&path, "config", "", "Configuration: a `file` of kind "+edge.Kind.Kind)
	f.BoolVar(&check, "check", false, "Only say whether the configuration is valid and can work on this machine")
	f.BoolVar(&cleanup, "cleanup", false, "Remove the rules and routes from this machine, and end")
	return c
}

const (
	// edgeEmptyAfter is the time for which the API server must report that most objects are gone.
	edgeEmptyAfter = time.Minute
	// edgeMaxRetry limits the time between failed attempts. A change waits at most twice as long.
	edgeMaxRetry = 30 * time.Second
)

// An edgeMachine is everything that runs on a balancer outside of the cluster.
type edgeMachine struct {
	env command.Env
	cfg *edge.Config
	log *slog.Logger
}

// check returns an error if the edge cannot work on this machine. It changes nothing.
func (m *edgeMachine) check(ctx context.Context) error {
	if _, err := kube.Connect(m.connection()); err != nil {
		return err
	}
	dp, err := m.choose(ctx)
	if err != nil {
		return err
	}
	dp.Close()
	return m.cfg.CheckForwarding()
}

func (m *edgeMachine) connection() kube.Connection {
	return kube.Connection{Kubeconfig: m.cfg.Kubeconfig, UserAgent: m.env.UserAgent("edge")}
}

// choose opens the datapath that the configuration asks for.
func (m *edgeMachine) choose(ctx context.Context) (datapath.Datapath, error) {
	return modes.All().Choose(ctx, m.log, m.cfg.ProxyMode, modes.Options{Log: m.log})
}

func (m *edgeMachine) cleanup(ctx context.Context) error {
	lock, err := command.LockNode(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	return errors.Join(modes.All().Cleanup(ctx, m.log, modes.Options{Log: m.log}), reset.Cleanup(ctx), m.routes(nil).CleanupOutside(), fence.Remove(ctx))
}

func (m *edgeMachine) run(ctx context.Context) error {
	lock, err := command.LockNode(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := m.cfg.CheckForwarding(); err != nil {
		return err
	}
	client, err := kube.Connect(m.connection())
	if err != nil {
		return err
	}
	dp, err := m.choose(ctx)
	if err != nil {
		return err
	}
	mode := dp.Info().Name
	others := modes.All().Others(ctx, m.log, mode, modes.Options{Log: m.log})
	dp = takeover.New(takeover.Config{Log: m.log, Datapath: dp, Others: others})
	defer dp.Close()

	m.log.Info("starting", "version", m.env.Version, "mode", mode, "targetType", m.cfg.TargetType, "clientSource", m.cfg.ClientSource)
	store := kube.New(kube.Config{Log: m.log, Client: client, EmptyAfter: edgeEmptyAfter})
	cluster := store.SubscribeEdge(m.cfg.LoadBalancerClass, m.cfg.TargetType == edge.TargetIP)
	registry := command.NewRegistry(store)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return store.Run(ctx) })
	source, prober := m.source(ctx, g, cluster, registry)
	unsupported := ^dp.Info().Capabilities.Algorithms
	facts := func() service.Facts {
		nodes, pods := cluster.InCluster()
		return service.Facts{Node: m.cfg.Node(nodes, pods, edge.OwnAddrs(), unsupported)}
	}
	metrics := proxy.NewMetrics(proxy.MetricsConfig{Registry: registry, Mode: mode, Changes: cluster.Changes})
	flows, table := m.flows(ctx, g, dp, metrics)
	defer table.Close()
	state, applied := health.NewState(2*edgeMaxRetry), &proxy.Applied{}
	tables := &nft.Monitor{}
	loop := proxy.New(proxy.Config{
		Log: m.log, Source: source, Datapath: dp, Facts: facts, Report: edge.NewReporter(m.log), Flows: flows, Applied: applied,
		Health: state, Metrics: metrics, MaxRetry: edgeMaxRetry, EmptyAfter: edgeEmptyAfter,
		TablesChanged: tables.Changed(command.DatapathTables...),
	})
	g.Go(func() error { return command.MonitorTables(ctx, m.log, tables) })
	g.Go(func() error { return loop.Run(ctx) })
	if err := m.route(ctx, g, cluster, registry); err != nil {
		return err
	}
	var lease layer2.Lease // nil: three members need none
	if a := m.cfg.Announce; a.NeedsLease() {
		lease = loadbalancer.NewEdgeVote(client, a.LeaseNamespace, a.Name)
	}
	speaks, err := m.announce(ctx, g, prober.CutOff, lease, applied, registry)
	if err != nil {
		return err
	}
	answers := &edgeStatus{started: time.Now(), version: m.env.Version, mode: mode, store: store, state: state, applied: applied, speaks: speaks, cutOff: prober.CutOff}
	g.Go(func() error { return status.Serve(ctx, m.log, lock.Status, answers.node) })
	if m.cfg.Metrics != "" {
		g.Go(func() error {
			return command.Serve(ctx, m.cfg.Metrics, "metricsBindAddress", registry, command.Checks{"/healthz": healthy(state, speaks)})
		})
	}
	err = g.Wait()
	m.log.Info("shutting down; the rules stay in place")
	return err
}

// edgeNodes has the cluster's nodes, for routes and for health checks.
type edgeNodes struct {
	*kube.Subscription
	cluster *kube.Edge
}

// Instances implements edge.Nodes.
func (n edgeNodes) Instances() []service.Instance { return n.cluster.Instances() }

// Peers implements node.Nodes.
func (n edgeNodes) Peers() []plan.Peer { return command.Peers(n.cluster.Nodes()) }

// source returns the source of the loop, and the Prober of nodes; both run until ctx ends. If connections go to pods, the
// Prober asks nodes only if there is another edge, which may reach more nodes.
func (m *edgeMachine) source(ctx context.Context, g *errgroup.Group, cluster *kube.Edge, registry *prometheus.Registry) (proxy.Source, *edge.Prober) {
	metrics := edge.NewMetrics()
	prober := edge.NewProber(m.cfg.Checks, edge.AskHTTP(m.cfg.Checks, m.env.UserAgent("edge")), metrics.Observe)
	metrics.SetProber(prober)
	g.Go(func() error { return prober.Run(ctx) })
	if m.cfg.TargetType == edge.TargetInstance {
		registry.MustRegister(metrics)
		source := edge.NewSource(m.log, cluster, prober, m.cfg.Checks)
		g.Go(func() error { return source.Run(ctx) })
		return source, prober
	}
	if a := m.cfg.Announce; a != nil && len(a.Members) > 1 {
		registry.MustRegister(metrics)
		nodes := edgeNodes{cluster.SubscribeNodes("checks"), cluster}
		g.Go(func() error { return edge.AskNodes(ctx, nodes, prober, m.cfg.Checks) })
	}
	return cluster, prober
}

// flows builds the reconciler that ends flows on this machine. It does not ask the API server whether pods are gone, because
// that needs a right to read pods. TCP connections to missing endpoints end by themselves.
func (m *edgeMachine) flows(ctx context.Context, g *errgroup.Group, dp datapath.Datapath, metrics *proxy.Metrics) (*flow.Reconciler, *conntrack.Table) {
	resets := reset.New(reset.Config{Log: m.log, Flows: conntrack.New(conntrack.Config{Log: m.log})})
	table := conntrack.New(conntrack.Config{Log: m.log, NodePort: func(netip.Addr) bool { return false }})
	enders := []flow.Ender{conntrack.NewEnder(m.log, table, resets.Reset), flow.EndFunc(dp.EndFlows)}
	g.Go(func() error { return resets.Run(ctx) })
	flows := flow.New(flow.Config{Log: m.log, Enders: enders, Observe: metrics.FlowsEnded})
	g.Go(func() error { return flows.Run(ctx) })
	return flows, table
}

// healthy returns a check of the loop's State and of announcing.
func healthy(s *health.State, speaks func() error) func() error {
	return func() error {
		if v := s.Verdict(); !v.Healthy || !v.Live {
			return errors.New(v.Reason())
		}
		return speaks()
	}
}
