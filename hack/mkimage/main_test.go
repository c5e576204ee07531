package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	out, binary := filepath.Join(dir, "image.tar"), filepath.Join(dir, "fairway")
	err := run(out, binary, "ghcr.io/fairway-net/fairway:test")
	if err == nil || !strings.Contains(err.Error(), "make build") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without a binary: error %v, want one line with advice", err)
	}
	if err := os.WriteFile(binary, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(out, binary, "fairway"); err == nil || !strings.Contains(err.Error(), "not complete") {
		t.Errorf("with half a name: error %v, want advice", err)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("an archive was left behind by failures: %v", err)
	}
	if err := run(out, binary, "ghcr.io/fairway-net/fairway:test"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"usr/bin/fairway", "fairway", "usr/sbin/nft", "usr/sbin/ip6tables-legacy-restore", "usr/sbin/xtables-nft-multi", "etc/passwd", "tmp/"} {
		if !inArchive(t, out, want) {
			t.Errorf("the image has no %s", want)
		}
	}
}

// inArchive looks for a file in the layers of an archive.
func inArchive(t *testing.T, archive, name string) bool {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	for outer := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := outer.Next()
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "blobs/") {
			continue
		}
		for inner := tar.NewReader(outer); ; {
			f, err := inner.Next()
			if err != nil {
				break // the end of the layer, or a blob that is none
			}
			if f.Name == name {
				return true
			}
		}
	}
}
