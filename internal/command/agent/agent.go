// Package agent is the command `fairway agent`: the service proxy, pod network and policies of one node.
//
//	flags, --config, --settings-dir ─▶ config ─▶ agent.run ─┬─ kube.Store
//	                                                        ├─ proxy.Loop ─▶ datapath
//	                                                        ├─ node.Network, enforcer.Enforcer
//	                                                        └─ health.Server, status
//
// This package wires the parts and decides nothing. An agent that ends leaves its rules in place. As gives other
// commands the agent's own configuration, so that they decide as the agent does.
package agent

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/path/probe"
)

// New builds `fairway agent`.
func New(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "agent",
		SuggestFor: []string{"proxy", "kube-proxy"},
		Short:      "Run the service proxy of this node (replaces kube-proxy)",
		Long: `Run the service proxy of this node (replaces kube-proxy).

The flags are kube-proxy's where they mean the same. On SIGTERM the agent ends and
leaves its rules in place, so that a restart interrupts no connection; --cleanup removes
the rules of all modes. Started in another mode than the agent before, it takes
the node over as soon as its own rules are in place, and connections go on.

Exit status: 0 after SIGTERM, 1 if it cannot start or go on.`,
		Example: `  fairway agent --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16
  fairway agent --master https://192.168.49.254:6443 --proxy-mode auto --replace-kube-proxy
  fairway agent --config /var/lib/kube-proxy/config.conf
  fairway agent --cleanup --pod-network routes    remove everything from this node`,
		Args: cobra.NoArgs,
	}
	flags := config.NewFlags(c.Flags())
	command.Complete(c, "proxy-mode", config.Modes()...)
	command.Complete(c, "pod-network", config.PodNetworks()...)
	command.Complete(c, "detect-local-mode", config.DetectClusterCIDR, config.DetectNodeCIDR, config.DetectBridge, config.DetectPrefix)
	command.Complete(c, "log-format", "text", "json")
	command.Complete(c, "log-level", "debug", "info", "warn", "error")
	c.RunE = func(c *cobra.Command, _ []string) error {
		settings, err := newFollower(e, flags)
		if err != nil {
			return err
		}
		cfg, err := flags.Load()
		if err != nil {
			return err
		}
		log := newLog(e.Stderr, cfg)
		settings.log = log
		for _, w := range cfg.Warnings {
			log.Warn(w)
		}
		a := &agent{cfg: cfg, log: log, env: e, published: &published{version: e.Version}, settings: settings}
		lock, err := command.LockNode(c.Context())
		if err != nil {
			return err
		}
		defer lock.Release()
		if cfg.Cleanup {
			return a.cleanup(c.Context())
		}
		g, ctx := errgroup.WithContext(c.Context())
		g.Go(func() error { return status.Serve(ctx, log, lock.Status, a.published.node) })
		g.Go(func() error { return a.runs(ctx) })
		return g.Wait()
	}
	return c
}

// agent joins everything that runs on a node.
type agent struct {
	cfg       *config.Config
	log       *slog.Logger
	env       command.Env
	published *published // the answers to fairway status; nil in commands that run no agent
	settings  *follower  // nil in commands that run no agent
	began     func()     // called when a run has started all its parts
	// gate asks NetworkPolicies about connections that this process carries. It is nil without --network-policy.
	gate *flow.Gate
}

// run runs all parts until ctx or one of them ends.
func (a *agent) run(ctx context.Context) error {
	a.limitMemory()
	says := newAgentStatus(a.cfg, a.env.Version)
	dp, release, err := a.openDatapath(ctx, says)
	if err != nil {
		return err
	}
	if dp != nil {
		defer dp.Close()
	}
	b, err := a.newBase(says, dp)
	if err != nil {
		return err
	}
	a.published.set(says)
	parts := []part{b.store.Run, b.peers.Run, b.events.Run, b.monitorTables, newObstacles(b)}
	if dp != nil {
		services, err := newServices(b, dp, a.connection())
		if err != nil {
			return err
		}
		defer services.close()
		parts = append(parts, services.run, newRelease(b, release))
	}
	if a.cfg.ConnectsPods() {
		parts = append(parts, newPodNetwork(b))
	}
	parts = append(parts, newPolicies(b))
	server := newHealthServer(b)
	if err := server.Listen(ctx); err != nil {
		return err
	}
	parts = append(parts, server.Run, func(ctx context.Context) error {
		return a.settings.run(ctx, a.cfg, &says.board, b.events.NodeEvent)
	})
	if err := probe.RemoveStale(); err != nil {
		a.log.Warn("links of a killed fairway path may be left", "err", err)
	}
	a.began()
	a.log.Info("starting", "version", a.env.Version, "node", a.cfg.NodeName, "mode", a.cfg.Mode, "podNetwork", a.cfg.PodNetwork)
	err = runAll(ctx, parts)
	a.log.Info("shutting down; the rules stay in place")
	return err
}

// connection returns the way to the API server.
func (a *agent) connection() kube.Connection { return a.cfg.Connection(a.env.UserAgent("")) }

// modeOptions returns the configuration for modes.
func (a *agent) modeOptions() modes.Options {
	c := a.cfg
	return modes.Options{Mark: c.Mask(), CountTraffic: c.CountTraffic, TCPTimeout: c.IPVS.TCP, FinTimeout: c.IPVS.TCPFin, UDPTimeout: c.IPVS.UDP, Log: a.log, Gate: a.gate}
}

// newLog returns the logger of the configured format.
func newLog(w io.Writer, cfg *config.Config) *slog.Logger {
	if !cfg.LogJSON {
		return command.NewLog(w, cfg.LogLevel)
	}
	return command.NewJSONLog(w, cfg.LogLevel, "agent")
}
