package cluster

import (
	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
)

// NewUninstall builds `fairway uninstall`.
func NewUninstall(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "uninstall",
		SuggestFor: []string{"remove", "delete", "reset", "cleanup"},
		Short:      "Remove Fairway from the cluster and clean its nodes",
		Long: `Remove Fairway from the cluster and clean its nodes.

Services go back to kube-proxy and DNS to coredns, if fairway install took them over. Then rules, routes and files of
Fairway are removed on every node.`,
		Example: `  fairway uninstall --dry-run`,
		Args:    cobra.NoArgs,
	}
	t := newTarget(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		i, err := t.installer(e)
		if err != nil {
			return err
		}
		return i.Uninstall(c.Context())
	}
	return c
}
