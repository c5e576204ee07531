package config

import (
	"os"
	"path/filepath"
	"strings"
)

// RunningArgs returns the arguments of the agent whose command line is in a file of /proc;
// it returns none if the file is another program's, or cannot be read.
func RunningArgs(file string) []string {
	data, err := os.ReadFile(file)
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	if err != nil || len(args) < 2 || filepath.Base(args[0]) != "fairway" || args[1] != "agent" {
		return nil
	}
	return args[2:]
}
