package cluster

import (
	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
)

// NewRollback builds `fairway rollback`.
func NewRollback(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Go back to what was installed before",
		Example: `  fairway rollback --list
  fairway rollback --to 3`,
		Args: cobra.NoArgs,
	}
	t := newTarget(c.Flags())
	to := c.Flags().Int("to", 0, "`revision` to go back to (default: the one before)")
	list := c.Flags().Bool("list", false, "show the revisions, and change nothing")
	c.RunE = func(c *cobra.Command, _ []string) error {
		i, err := t.installer(e)
		if err != nil {
			return err
		}
		if *list {
			return i.History(c.Context())
		}
		return i.Rollback(c.Context(), *to)
	}
	return c
}
