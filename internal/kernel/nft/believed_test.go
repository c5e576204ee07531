package nft

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestNftIsNotBelieved: if nft reports success but has done nothing, Declare and Load fail, and the old rules stay.
func TestNftIsNotBelieved(t *testing.T) {
	table, _ := open(t)
	must(t, table.Delete(t.Context()))
	_, err := table.Load(t.Context(), blocks("type ipv4_addr"), false)
	must(t, err)
	before := list(t, "table inet tested")
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\nexec cat >/dev/null\n"), 0o755))
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir+":"+path)
	next := blocks("type ipv4_addr")
	next.Salt = "next"
	more := blocks("type ipv4_addr")
	more.Source += "table inet {{.Table}} {\n\tset more {\n\t\ttype ipv4_addr\n\t}\n}\n"
	if _, err := table.Declare(t.Context(), more); !errors.Is(err, errNotDone) {
		t.Errorf("Declare: %v, want %v", err, errNotDone)
	}
	for _, again := range []bool{false, true} {
		if _, err := table.Load(t.Context(), next, again); !errors.Is(err, errNotDone) {
			t.Errorf("Load, again %v: %v, want %v", again, err, errNotDone)
		}
	}
	t.Setenv("PATH", path)
	if after := list(t, "table inet tested"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	_, err = table.Load(t.Context(), next, false)
	must(t, err)
}
