package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cni"
)

// newCNI is the plugin under a name that a person can type. A runtime starts the
// copy of this binary that the agent installs as /opt/cni/bin/fairway-cni, and
// main recognises that with isCNI.
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

// isCNI reports whether a container runtime started this program as a plugin:
// runtimes pass no arguments, only a file name and the environment. The name
// "fairway" counts only in one of the runtime's plugin directories, so that an
// environment with a stray CNI_COMMAND does not turn `fairway agent` into one.
func isCNI(argv0 string) bool {
	switch filepath.Base(argv0) {
	case cni.PluginName, cni.LoopbackName:
		return true
	case "fairway":
		return os.Getenv("CNI_COMMAND") != "" &&
			slices.Contains(filepath.SplitList(os.Getenv("CNI_PATH")), filepath.Dir(argv0))
	}
	return false
}
