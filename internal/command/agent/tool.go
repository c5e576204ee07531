package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// A Tool decides as the agent of this node does, and runs nothing.
type Tool struct {
	Config *config.Config
	Log    *slog.Logger
	as     *agent
	person *kube.Connection // nil: the configuration's
}

// ToolFor decides as the cluster's agents do by the settings in their ConfigMap, for a command with a connection of its
// own. Without the ConfigMap the defaults count.
func ToolFor(ctx context.Context, e command.Env, c kube.Connection) (*Tool, error) {
	settings, err := kube.AgentSettings(ctx, c)
	if err != nil {
		return nil, err
	}
	cfg, err := config.NewToolFlags(pflag.NewFlagSet("tool", pflag.ContinueOnError)).Load(config.ArgsOf(settings))
	if err != nil {
		return nil, fmt.Errorf("settings in ConfigMap kube-system/fairway-agent: %w", err)
	}
	cfg.Person = true
	as := &agent{cfg: cfg, env: e, log: command.NewLog(e.Stderr, slog.LevelError)}
	return &Tool{Config: cfg, Log: as.log, as: as, person: &c}, nil
}

// As makes c run f with the agent's configuration: the flags of the agent in this pod, if one runs, else the settings of
// the cluster's agents in their ConfigMap. Given flags override both.
func As(c *cobra.Command, e command.Env, f func(context.Context, *Tool, []string) error) {
	flags := config.NewToolFlags(c.Flags())
	flags.Name(c.Flags())
	timeout := c.Flags().Duration("timeout", 10*time.Second, "how long to wait for the API server")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := flags.Load(config.RunningArgs("/proc/1/cmdline"))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), *timeout)
		defer cancel()
		if cfg.Person {
			// Without the ConfigMap the defaults count. f reports an API server that does not answer.
			if settings, err := kube.AgentSettings(ctx, cfg.Connection(e.UserAgent(""))); err == nil && settings != nil {
				if cfg, err = flags.Load(config.ArgsOf(settings)); err != nil {
					return fmt.Errorf("settings in ConfigMap kube-system/fairway-agent: %w", err)
				}
				cfg.Person = true
			}
		}
		as := &agent{cfg: cfg, env: e, log: command.NewLog(e.Stderr, slog.LevelError)}
		return f(ctx, &Tool{Config: cfg, Log: as.log, as: as}, args)
	}
}

// Modes returns the configuration for modes.
func (t *Tool) Modes() modes.Options { return t.as.modeOptions() }

// Connection returns the agent's way to the API server.
func (t *Tool) Connection() kube.Connection {
	if t.person != nil {
		return *t.person
	}
	return t.as.connection()
}

// Wanted is the table of the API server's objects at one moment, with its inputs.
type Wanted struct {
	Table   *service.Table
	Facts   service.Facts
	Objects *kube.Services
}

// nodeThere returns an error on a machine that is not a node, such as an administrator's. In the agent's pod the node
// may not be registered yet.
func (t *Tool) nodeThere(store *kube.Store) error {
	_, known := store.Node()
	unread := slices.ContainsFunc(store.Troubles(), func(x kube.Trouble) bool { return x.Kind == "nodes" })
	if known || unread || !t.Config.Person {
		return nil
	}
	return fmt.Errorf("there is no node %q [name one with --node, or run this in the pod of its agent; kubectl get nodes lists them]", t.Config.NodeName)
}

// Wanted reads the API server once and compiles the table for a mode.
func (t *Tool) Wanted(ctx context.Context, mode datapath.Info) (*Wanted, error) {
	client, err := kube.Connect(t.Connection())
	if err != nil {
		return nil, err
	}
	store, objects, err := kube.Once(ctx, kube.Config{Log: t.Log, Client: client, NodeName: t.Config.NodeName})
	if err != nil {
		return nil, err
	}
	if err := t.nodeThere(store); err != nil {
		return nil, err
	}
	t.Config.Mode = mode.Name // the mode decides the default algorithm
	ejected, err := t.ejected(ctx, mode.Name)
	if err != nil {
		return nil, err
	}
	facts := service.Facts{Node: t.Config.View(store, ^mode.Capabilities.Algorithms)(), Dead: liveness.Ask(ctx), Ejected: ejected}
	var ports service.HostPorts
	if t.Config.ConnectsPods() {
		ports = newHostPorts(t.Log, t.Config.NodeName).Now()
	}
	return &Wanted{Table: objects.Table(facts, ports), Facts: facts, Objects: objects}, nil
}

// ejected returns the endpoints that this machine's kernel has ejected in a mode.
func (t *Tool) ejected(ctx context.Context, mode string) (out []netip.AddrPort, err error) {
	if mode == datapath.None {
		return nil, nil
	}
	dp, err := modes.All().Current(ctx, t.Log, mode, t.Modes())
	if err != nil {
		return nil, err
	}
	defer dp.Close()
	all, err := dp.Ejected(ctx)
	for _, e := range all {
		out = append(out, e.Endpoint)
	}
	return out, err
}

// PoliciesNotEnforced returns why the agents do not enforce NetworkPolicies. It returns "" if they do, or if that is not
// known here.
func (t *Tool) PoliciesNotEnforced(ctx context.Context) (string, error) {
	const remedy = " [fairway upgrade --component network-policy]"
	if !t.Config.Person { // the flags are those of the agent in this pod
		if t.Config.NetworkPolicy {
			return "", nil
		}
		return "the agent runs without --network-policy, so that what policies deny passes" + remedy, nil
	}
	settings, err := kube.AgentSettings(ctx, t.Connection())
	if err != nil || settings["NETWORK_POLICY"] != "false" {
		return "", err
	}
	return "NETWORK_POLICY is false in ConfigMap kube-system/fairway-agent, so that what policies deny passes" + remedy, nil
}
