package main

import (
	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cni"
)

// newCNI is the plugin as a command for interactive use. A runtime starts the
// copy of this binary that the agent installs as /opt/cni/bin/fairway-cni, and
// main recognises that with cni.Invoked.
func newCNI(env) *cobra.Command {
	return &cobra.Command{
		Use:   "cni",
		Short: "Act as the CNI plugin: read CNI_COMMAND and its kin from the environment",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// The plugin has printed its error as JSON, which is all that a
			// runtime reads.
			if code := cni.Main(cni.PluginName, version); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
}
