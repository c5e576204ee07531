package cni

import (
	"os"
	"path/filepath"
	"slices"
)

// Invoked reports whether a container runtime started this program, under the name argv0,
// as a plugin: runtimes pass no arguments, only a file name and the environment. The name
// "fairway" counts only in one of the runtime's plugin directories, so that an
// environment with a stray CNI_COMMAND does not turn `fairway agent` into one.
func Invoked(argv0 string) bool {
	switch filepath.Base(argv0) {
	case PluginName, LoopbackName:
		return true
	case "fairway":
		return os.Getenv("CNI_COMMAND") != "" &&
			slices.Contains(filepath.SplitList(os.Getenv("CNI_PATH")), filepath.Dir(argv0))
	}
	return false
}
