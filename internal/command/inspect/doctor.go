package inspect

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/doctor"
	"github.com/fairway-net/fairway/internal/doctor/probe"
	"github.com/fairway-net/fairway/internal/output"
)

// NewDoctor builds `fairway doctor`.
func NewDoctor(e command.Env) *cobra.Command {
	format := output.Table
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node for what keeps an agent from working, before or after it is installed",
		Long: `Check this node for what keeps an agent from working, before or after it is installed.

It asks the kernel which modes it can do, and looks at programs, the connection table, forwarding,
ports, other service proxies and firewalls, the MTU of pods' packets, and the API server: whether it
answers, is reached without a Service, agrees about the time and grants what an agent reads. It
changes nothing. Without root it says what it skipped. In the agent's pod it uses the agent's flags.

Exit status: 0 if an agent works here, 1 if a check is a failure, 2 if the checks could not run.`,
		Example: `  sudo fairway doctor
  sudo fairway doctor --proxy-mode iptables --kubeconfig /etc/kubernetes/kubelet.conf
  kubectl -n kube-system exec ds/fairway-agent -- fairway doctor -o json`,
		Args: cobra.NoArgs,
	}
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, _ []string) error {
		podNetwork := a.Config.PodNetwork
		if !a.Config.ConnectsPods() {
			podNetwork = ""
		}
		r := doctor.Examine(probe.Look(ctx, probe.Config{
			Node: a.Config.NodeName, Mode: a.Config.Mode, PodNetwork: podNetwork,
			Connection: a.Connection(), Healthz: a.Config.Healthz.Port(), Metrics: a.Config.Metrics.Port(),
		}))
		if err := output.Write(e.Stdout, format, r); err != nil {
			return err
		}
		if r.Failed() {
			return command.ExitError(1)
		}
		return nil
	})
	c.RunE = command.ErrorStatus(2, c.RunE)
	return c
}
