// Package inspect has the tools that show what a node does for Services and policies, and why: diff,
// dump, doctor, explain, policy. They ask packages that judge, and write what those say. It promises
// that none of them changes anything.
package inspect

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/output"
	"github.com/fairway-net/fairway/internal/service"
)

// NewDiff builds `fairway diff`.
func NewDiff(e command.Env) *cobra.Command {
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
	command.Complete(c, "output", output.Formats()...)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, _ []string) error {
		if a.Config.Mode == datapath.None {
			return errors.New("--proxy-mode none carries no Services, so there is nothing to compare")
		}
		dp, err := modes.All().Current(ctx, a.Log, a.Config.Mode, a.Modes())
		if err != nil {
			return err
		}
		defer dp.Close()
		want, err := a.Wanted(ctx, dp.Info())
		if err != nil {
			return err
		}
		have, err := dp.Adopt(ctx)
		if err != nil {
			return err
		}
		differ := service.Compare(dp.Info().Name, have.Table, want.Table)
		if err = output.Write(e.Stdout, format, differ); err == nil && differ.Any() {
			err = command.ExitError(1)
		}
		return err
	})
	c.RunE = command.ErrorStatus(2, c.RunE)
	return c
}
