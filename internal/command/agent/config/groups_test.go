package config

import (
	"testing"

	"github.com/spf13/pflag"
)

// TestGroups: every flag of the agent is in a group, and every name in a group is a flag.
func TestGroups(t *testing.T) {
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	NewFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && Group(f.Name) == groupCommand {
			t.Errorf("--%s is in no group", f.Name)
		}
	})
	for _, g := range groups {
		for _, name := range g.flags {
			if fs.Lookup(name) == nil && name != "context" { // of commands for people
				t.Errorf("group %s names --%s, which does not exist", g.name, name)
			}
		}
	}
}

// TestLogFormat: by our flag, by kube-proxy's, and by the file.
func TestLogFormat(t *testing.T) {
	for args, want := range map[string]bool{"--log-format=json": true, "--logging-format=json": true, "--log-format=text": false, "--v=0": false} {
		c, err := load(args, "--cluster-cidr=10.244.0.0/16")
		if err != nil || c.LogJSON != want {
			t.Errorf("%s: JSON %v, %v", args, c != nil && c.LogJSON, err)
		}
	}
	c, err := load("--config=" + write(t, "logging: {format: json}"))
	if err != nil || !c.LogJSON {
		t.Errorf("the file: %v", err)
	}
}
