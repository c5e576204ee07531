package config

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRunningArgs(t *testing.T) {
	for text, want := range map[string][]string{
		"/usr/bin/fairway\x00agent\x00--proxy-mode=ipvs\x00-v=2\x00": {"--proxy-mode=ipvs", "-v=2"},
		"fairway\x00agent\x00":           {},
		"fairway\x00dns\x00--conf=x\x00": nil,
		"bash\x00agent\x00--x\x00":       nil,
		"":                               nil,
	} {
		file := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := RunningArgs(file); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := RunningArgs("/does/not/exist"); got != nil {
		t.Errorf("no file: %q", got)
	}
}
