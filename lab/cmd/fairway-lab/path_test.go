package main

import (
	"path/filepath"
	"testing"

	"github.com/fairway-net/fairway/lab/cluster"
)

// TestMakeAbsolute: paths hold for processes that work elsewhere, and those that say "none" stay so.
func TestMakeAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	cmd := upCommand(&cluster.Lab{})
	for name, value := range map[string]string{"deploy": "manifests", "image": "", "kube-proxy": "/usr/bin/kube-proxy"} {
		if err := cmd.Flags().Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeAbsolute(cmd); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"deploy": filepath.Join(here, "manifests"), "image": "", "kube-proxy": "/usr/bin/kube-proxy"} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("--%s is %q, want %q", name, got, want)
		}
	}
}
