package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// TestAddSettings: a program takes its own settings from the variables of its pod. A flag wins, and an empty one is none.
func TestAddSettings(t *testing.T) {
	for _, c := range []struct{ args, class, within, want string }{
		{"", "", "", " 30s"},
		{"", "fairway.net/lb", "1m", "fairway.net/lb 1m0s"},
		{"--lb-class=mine", "fairway.net/lb", "", "mine 30s"},
		{"", "", "soon", `setting SPEAKER_READY_WITHIN: invalid argument "soon" for "--ready-within" flag: time: invalid duration "soon"`},
	} {
		t.Setenv("LB_CLASS", c.class)
		t.Setenv("SPEAKER_READY_WITHIN", c.within)
		t.Setenv("POD_NETWORK", "routes") // not the speaker's
		got := ""
		cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
		class, within := cmd.Flags().String("lb-class", "", ""), cmd.Flags().Duration("ready-within", 30e9, "")
		network := cmd.Flags().String("pod-network", "", "")
		cmd.RunE = func(*cobra.Command, []string) error { got = *class + " " + within.String() + *network; return nil }
		AddSettings(cmd, settings.Speaker)
		cmd.SetArgs(strings.Fields(c.args))
		if err := cmd.Execute(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
