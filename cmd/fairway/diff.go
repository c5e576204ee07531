package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/liveness"
	"github.com/fairway-net/fairway/internal/output"
	"github.com/fairway-net/fairway/internal/service"
)

func newDiff(e env) *cobra.Command {
	format := output.Table
	c := &cobra.Command{
		Use:   "diff",
		Short: "Compare what this node's kernel does for Services with what it should do",
		Long: `Compare what this node's kernel does for Services with what it should do.

Decides as the agent would: in the agent's pod with the flags that the agent runs with,
elsewhere with the same defaults; a flag given here wins. It changes nothing. As with
diff(1) the exit status is 0 for no difference, 1 for some and 2 for an error; lines with - are in the
kernel and should not be, lines with + are missing.`,
		Example: `  kubectl -n kube-system exec ds/fairway-agent -- fairway diff
  fairway diff --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16`,
		Args: cobra.NoArgs,
	}
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	complete(c, "output", output.Formats()...)
	asAgent(c, e, func(ctx context.Context, a *agent, _ []string) error {
		if a.cfg.Mode == datapath.None {
			return errors.New("--proxy-mode none carries no Services, so there is nothing to compare")
		}
		dp, err := modes.All().Current(ctx, a.log, a.cfg.Mode, a.modeOptions())
		if err != nil {
			return err
		}
		defer dp.Close()
		want, err := a.wanted(ctx, dp.Info())
		if err != nil {
			return err
		}
		have, err := dp.Adopt(ctx)
		if err != nil {
			return err
		}
		differ := service.Compare(dp.Info().Name, have.Table, want.table)
		if err = output.Write(e.stdout, format, differ); err == nil && differ.Any() {
			err = exitError(1)
		}
		return err
	})
	c.RunE = errorStatus(2, c.RunE)
	return c
}

// asAgent makes c run f as the agent would decide: with the flags of the agent that runs in
// this pod, if one does, and those that are given, which win.
func asAgent(c *cobra.Command, e env, f func(context.Context, *agent, []string) error) {
	flags := config.NewToolFlags(c.Flags())
	timeout := c.Flags().Duration("timeout", 10*time.Second, "how long to wait for the API server")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := flags.Load(config.RunningArgs("/proc/1/cmdline"))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), *timeout)
		defer cancel()
		return f(ctx, &agent{cfg: cfg, log: newLog(e.stderr, slog.LevelWarn)}, args)
	}
}

// wanted is what the API server's objects ask for at one moment, and what it follows from.
type wanted struct {
	table   *service.Table
	node    service.Node
	objects *kube.Services
}

// wanted reads the API server once and compiles what its objects ask for in a mode.
func (a *agent) wanted(ctx context.Context, mode datapath.Info) (*wanted, error) {
	client, err := kube.Connect(a.cfg.Connection(userAgent))
	if err != nil {
		return nil, err
	}
	store, objects, err := kube.Once(ctx, kube.Config{Log: a.log, Client: client, NodeName: a.cfg.NodeName})
	if err != nil {
		return nil, err
	}
	a.cfg.Mode = mode.Name // the node's default algorithm is that of the mode
	node := a.cfg.View(store, ^mode.Capabilities.Algorithms)()
	node.Dead = liveness.Ask(ctx)
	var ports service.HostPorts
	if a.cfg.ConnectsPods() {
		ports = a.hostPorts().Now()
	}
	return &wanted{table: objects.Table(node, ports), node: node, objects: objects}, nil
}
