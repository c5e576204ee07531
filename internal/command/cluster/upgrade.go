package cluster

import (
	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
)

// NewUpgrade builds `fairway upgrade`.
func NewUpgrade(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Bring this version, or other settings, to a cluster that has Fairway",
		Long: `Bring this version, or other settings, to a cluster that has Fairway.

Settings that no flag names stay as they are on the cluster, also where the ConfigMap was edited. Objects that are no
longer needed are deleted. fairway rollback goes back.`,
		Example: `  fairway upgrade --dry-run
  fairway upgrade --proxy-mode iptables
  fairway upgrade --set COUNT_TRAFFIC=true`,
		Args: cobra.NoArgs,
	}
	t, options := newTarget(c.Flags()), newOptions(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		o, err := options(e.Version)
		if err != nil {
			return err
		}
		i, err := t.installer(e)
		if err != nil {
			return err
		}
		return i.Upgrade(c.Context(), o)
	}
	return c
}
