package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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
		dp, err := a.held(ctx)
		if err != nil {
			return err
		}
		defer dp.Close()
		want, err := a.wanted(ctx, dp)
		if err != nil {
			return err
		}
		have, err := dp.Adopt(ctx)
		if err != nil {
			return err
		}
		if writeDiff(e.stdout, have.Table, want.table) {
			return exitError(1)
		}
		return nil
	})
	return c
}

// asAgent gives c the agent's flags, and makes it run f with what they say. In the agent's
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
			if err := c.Flags().Parse(agentArgs("/proc/1/cmdline")); err != nil {
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

// agentArgs returns the flags of the agent whose command line is in a file of /proc,
// none if that is another program.
func agentArgs(file string) []string {
	data, err := os.ReadFile(file)
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	if err != nil || len(args) < 2 || filepath.Base(args[0]) != "fairway" || args[1] != "agent" {
		return nil
	}
	return args[2:]
}

// held opens the datapath of the mode that the agent's flags name; for auto the one whose
// rules are here.
func (a *agent) held(ctx context.Context) (datapath.Datapath, error) {
	switch a.cfg.Mode {
	case datapath.None:
		return nil, errors.New("--proxy-mode none carries no Services, so there is nothing to compare")
	case datapath.Auto:
		all, err := modes.All().Found(ctx, a.modeOptions())
		if err != nil {
			return nil, err
		}
		if len(all) > 0 {
			for _, dp := range all[1:] {
				dp.Close()
			}
			a.cfg.Mode = all[0].Info().Name
			return all[0], nil
		}
	}
	dp, err := modes.All().Choose(ctx, a.log, a.cfg.Mode, a.modeOptions())
	if err == nil {
		a.cfg.Mode = dp.Info().Name
	}
	return dp, err
}

// wanted is what the API server's objects ask for at one moment, and what it follows from.
type wanted struct {
	table   *service.Table
	node    service.Node
	objects *kube.Services
}

// wanted reads the API server once and compiles what its objects ask for. dp may be nil.
func (a *agent) wanted(ctx context.Context, dp datapath.Datapath) (*wanted, error) {
	client, err := kube.Connect(a.cfg.Connection(userAgent))
	if err != nil {
		return nil, err
	}
	store := kube.New(kube.Config{Log: a.log, Client: client, NodeName: a.cfg.NodeName})
	src := store.SubscribeServices("command")
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() { stop(); <-ended }()
	select {
	case <-src.Synced():
	case <-ctx.Done():
		return nil, errors.New("the API server did not answer in time [see --master, --kubeconfig and --timeout]")
	}
	node := a.cfg.View(store, ^dp.Info().Capabilities.Algorithms)()
	b := service.NewBuilder()
	for _, n := range src.Take() {
		if svc, ok := src.Service(n); ok {
			b.Set(service.Compile(svc, src.Slices(n), node))
		}
	}
	return &wanted{table: b.Table(node.Settings), node: node, objects: src}, nil
}

// writeDiff prints how have must change to be want, and reports whether it must.
func writeDiff(w io.Writer, have, want *service.Table) bool {
	changes := service.Diff(have, want)
	for _, c := range changes {
		if c.Old != nil {
			for _, line := range c.Old.Lines() {
				fmt.Fprintln(w, "-", line)
			}
		}
		if c.New != nil {
			for _, line := range c.New.Lines() {
				fmt.Fprintln(w, "+", line)
			}
		}
	}
	same := have.Settings.Equal(want.Settings)
	if !same {
		fmt.Fprintf(w, "- %s\n", strings.ReplaceAll(have.Settings.String(), "\n", "\n- "))
		fmt.Fprintf(w, "+ %s\n", strings.ReplaceAll(want.Settings.String(), "\n", "\n+ "))
	}
	return len(changes) > 0 || !same
}
