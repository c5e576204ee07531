package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMan: each command that help lists has a manual page, with its flags and examples, and the same version has the same
// pages.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767225600")
	first, second := t.TempDir(), t.TempDir()
	prints(t, "", "man", first)
	prints(t, "", "man", second)
	helps, err := filepath.Glob("testdata/help/*.txt")
	if err != nil || len(helps) == 0 {
		t.Fatal(helps, err)
	}
	for _, help := range helps {
		name := strings.TrimSuffix(filepath.Base(help), ".txt")
		page := "fairway-" + name + ".1"
		if name == "fairway" {
			page = "fairway.1"
		}
		text, err := os.ReadFile(filepath.Join(first, page))
		if err != nil {
			t.Error(err)
			continue
		}
		again, err := os.ReadFile(filepath.Join(second, page))
		if err != nil || string(again) != string(text) {
			t.Errorf("%s differs from time to time: %v", page, err)
		}
		for _, want := range []string{".SH NAME", ".SH SYNOPSIS", `.TH "FAIRWAY`, "Jan 2026"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks %q", page, want)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(first, "fairway-top.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`--once`, ".SH EXAMPLE", "fairway top -A", "fairway(1)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("fairway-top.1 lacks %q:\n%s", want, page)
		}
	}
	if _, err := os.Stat(filepath.Join(first, "fairway-top-node.1")); err == nil {
		t.Error("a hidden command has a manual page")
	}
}
