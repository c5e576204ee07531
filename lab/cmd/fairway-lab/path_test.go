package main

import (
	"path/filepath"
	"testing"

	"github.com/fairway-net/fairway/lab/cluster"
)

// TestMakeAbsolute: paths become absolute, for processes with other working directories. An empty path, which means
// none, stays empty.
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
