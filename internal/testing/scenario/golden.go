package scenario

import (
	"os"
	"path/filepath"
	"testing"
)

// Golden compares a text for each scenario with a file in testdata. The name of the file is the scenario's with a
// suffix. Golden also reports files without a scenario. If update is set, it writes the files. So a review shows how a
// change of a renderer changes the kernel's objects.
func Golden(t testing.TB, suffix string, update bool, text func(*Scenario) (string, error)) {
	t.Helper()
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range all {
		file := filepath.Join("testdata", s.Name+suffix)
		known[file] = true
		got, err := text(s)
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		CompareFile(t, file, got, update)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !known[file] {
			t.Errorf("%s belongs to no scenario", file)
		}
	}
}

// CompareFile compares a text with a file, or writes the file.
func CompareFile(t testing.TB, file, got string, update bool) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err == nil && string(want) == got {
		return
	}
	if !update {
		t.Errorf("%s differs [go test -update writes it] (%v)\n--- got\n%s--- want\n%s", file, err, got, want)
		return
	}
	if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}
