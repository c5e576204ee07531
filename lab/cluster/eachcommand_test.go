package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEachCommand: every command of both programs has its output in a transcript, or in a golden file of another test.
func TestEachCommand(t *testing.T) {
	beside(t, 0)
	elsewhere := map[string]string{ // commands with output that depends on the machine, or that need more than a lab
		"fairway doctor":   "../../internal/operate/doctor/testdata/report.table",
		"fairway diff":     "../../internal/command/inspect/testdata/listing/diff.table", // a working lab has no difference
		"fairway path":     "../../internal/path/testdata/00-delivered.txtar",            // and ../../internal/command/path
		"fairway top":      "../../internal/flow/top/testdata/two-nodes.txtar",           // TestPathNode runs it with traffic
		"fairway help":     "../../cmd/fairway/testdata/help/fairway.txt",
		"fairway-lab help": "../cmd/fairway-lab/testdata/help/fairway-lab.txt",
	}
	files, err := filepath.Glob("testdata/commands/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for program, path := range map[string]string{"fairway": built.fairway, "fairway-lab": built.lab} {
		out, err := exec.Command(path, "__complete", "").Output()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(out)) {
			name, _, ok := strings.Cut(line, "\t")
			if !ok {
				continue
			}
			n++
			command := program + " " + name
			if file := elsewhere[command]; file != "" {
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s: %v", command, err)
				}
			} else if !regexp.MustCompile(`(?m)^\$ (\S.* )?` + regexp.QuoteMeta(command) + `\b.*\n[^$%#]`).MatchString(all.String()) {
				t.Errorf("%s: no file of testdata/commands has an output of it", command)
			}
		}
		if n < 15 {
			t.Errorf("%s has only %d commands:\n%s", program, n, out)
		}
	}
}
