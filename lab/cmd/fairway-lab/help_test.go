package main

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/clitest"
)

var update = flag.Bool("update", false, "write the golden files of help texts anew")

// TestHelp compares every command's help text with a golden file. The text has an example and names the values of
// flags. kubectl prints its own help, so the test leaves it out.
func TestHelp(t *testing.T) {
	cmd := root(func() {})
	up, _, err := cmd.Find([]string{"up"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pathFlags { // the defaults contain the program's directory, which differs between machines
		if f := up.Flags().Lookup(name); f.DefValue != "" {
			f.DefValue = filepath.Join("…", filepath.Base(f.DefValue))
		}
	}
	clitest.Help(t, cmd, filepath.Join("testdata", "help"), *update, "completion")
}

// TestUnknown: an unknown word is an error with a hint.
func TestUnknown(t *testing.T) {
	for want, line := range map[string][]string{
		`unknown command "upp" [did you mean fairway-lab up?]`:                   {"upp"},
		`unknown command "bosh" [did you mean fairway-lab completion bash?]`:     {"completion", "bosh"},
		`unknown flag: --node [did you mean --nodes? See fairway-lab up --help]`: {"up", "--node", "2"},
		`unknown command "frobnicate" [fairway-lab --help lists the commands]`:   {"frobnicate"},
		`unknown flag: --frobnicate [fairway-lab status --help lists all flags]`: {"status", "--frobnicate"},
	} {
		cmd := root(func() {})
		cmd.SetArgs(line)
		if err := cmd.Execute(); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}
