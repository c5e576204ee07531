package config

import (
	"os"
	"path/filepath"
	"strings"
)

// RunningArgs returns the arguments of the agent whose command line is in a file of /proc. It returns nil if the file
// belongs to another program or cannot be read.
func RunningArgs(file string) []string {
	data, err := os.ReadFile(file)
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	if err != nil || len(args) < 2 || filepath.Base(args[0]) != "fairway" || args[1] != "agent" {
		return nil
	}
	return args[2:]
}
