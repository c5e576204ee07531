package command

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// AddSettings makes c read its settings: the variables of the pod, which are the keys of the ConfigMap fairway-agent.
// A flag on the command line wins.
func AddSettings(c *cobra.Command, program string) {
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		for _, s := range settings.Of(program) {
			value, flag := os.Getenv(s.Key), c.Flags().Lookup(s.Flag)
			if value == "" || flag == nil || flag.Changed {
				continue
			}
			if err := c.Flags().Set(s.Flag, value); err != nil {
				return fmt.Errorf("setting %s: %w", s.Key, err)
			}
		}
		return nil
	}
}
