package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSpecs: the table of conformance.md that says where each spec runs has the lines of hack/e2e-specs, and
// each lab of the file is one that hack/e2e makes.
func TestSpecs(t *testing.T) {
	var want []string
	script := read(t, "../hack/e2e")
	for line := range strings.Lines(read(t, "../hack/e2e-specs")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("hack/e2e-specs: %q has %d columns, want 3", line, len(f))
		}
		if _, err := regexp.Compile(f[0]); err != nil {
			t.Errorf("hack/e2e-specs: %v", err)
		}
		if f[1] != "none" && !strings.Contains(script, "\n"+f[1]+") ") {
			t.Errorf("hack/e2e makes no lab %s", f[1])
		}
		want = append(want, "| `"+f[0]+"` | "+f[1]+" | "+f[2]+" |")
	}
	_, table, _ := strings.Cut(read(t, "conformance.md"), "\n| specs | lab | why |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if got := strings.Split(table, "\n"); !slices.Equal(got, want) {
		t.Errorf("conformance.md has\n%s\nwant, from hack/e2e-specs,\n%s", table, strings.Join(want, "\n"))
	}
}
