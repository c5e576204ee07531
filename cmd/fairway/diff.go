package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

func newDiff(e env) *cobra.Command {
	c := &cobra.Command{
		Use:   "diff",
		Short: "Compare what this node's kernel does for Services with what it should do",
		Long: `Compare what this node's kernel does for Services with what it should do.

Takes the agent's flags, to decide as the agent would; in the agent's pod, without
flags, those that the agent runs with. It changes nothing. As with
diff(1) the exit status is 0 for no difference and 1 for some; lines with - are in the
kernel and should not be, lines with + are missing.`,
		Args: cobra.NoArgs,
	}
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
		differ, err := service.WriteDiff(e.stdout, have.Table, want.table)
		if err == nil && differ {
			err = exitError(1)
		}
		return err
	})
	return c
}

// asAgent gives c the agent's flags, and makes it run f with their values. In the agent's
// pod the flags that the agent runs with count, unless some of them are given.
func asAgent(c *cobra.Command, e env, f func(context.Context, *agent, []string) error) {
	own := map[string]bool{"timeout": true}
	c.Flags().VisitAll(func(f *pflag.Flag) { own[f.Name] = true })
	flags := config.NewFlags(c.Flags())
	timeout := c.Flags().Duration("timeout", 10*time.Second, "how long to wait for the API server")
	c.RunE = func(c *cobra.Command, args []string) error {
		given := false
		c.Flags().Visit(func(f *pflag.Flag) { given = given || !own[f.Name] })
		if !given {
			if err := c.Flags().Parse(config.RunningArgs("/proc/1/cmdline")); err != nil {
				return fmt.Errorf("read the agent's flags: %w", err)
			}
		}
		cfg, err := flags.Load()
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
	return &wanted{table: objects.Table(node), node: node, objects: objects}, nil
}
