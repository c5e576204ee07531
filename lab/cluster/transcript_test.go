package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/docpage"
)

var update = flag.Bool("update", false, "write the golden files of commands' output anew")

// transcripts is a walk that runs the files of testdata/commands in a lab, and compares the output of the commands with
// them. It leaves out the parts that differ between runs (see stable). internal/operate/install has the transcripts of
// install on each kind of cluster.
//
//	$ COMMAND   run by bash once; the next lines are its output, and [exit N] if its status is not 0
//	% COMMAND   run until it succeeds, for at most 90 s; its output does not count
//	# TEXT      a comment
//
// -update rewrites the outputs: read them.
func (l *lab) transcripts() *walk {
	w := &walk{lab: l, dir: l.TempDir()}
	w.vars = []string{"FAIRWAY_LAB_NAME=" + l.name, "KUBECONFIG=" + filepath.Join(l.dir(), "kubeconfig"), "IMAGES=" + built.images,
		"UP=" + strings.Join(l.upArgs()[1:], " "), "PATH=" + w.dir + ":" + os.Getenv("PATH")}
	for name, program := range map[string]string{"fairway-lab": built.lab, "kubectl": built.lab, "fairway": built.fairway, "kubectl-fairway": built.fairway} {
		if err := os.Symlink(program, filepath.Join(w.dir, name)); err != nil {
			l.Fatal(err)
		}
	}
	return w
}

// sameDir returns w for a subtest, in the same directory.
func (w *walk) sameDir(t *testing.T) *walk {
	c := *w
	c.lab = w.lab.in(t)
	return &c
}

// transcript runs the commands of a file, and compares their output.
func (w *walk) transcript(name string) {
	text, err := os.ReadFile(filepath.Join("testdata", "commands", name+".txt"))
	if err != nil {
		w.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		kind, command, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "#":
			got.WriteString(line)
		case "%":
			got.WriteString(line)
			w.until(command)
		case "$":
			got.WriteString(line)
			out, err := w.bash(w.dir, command)
			got.WriteString(w.stable(out))
			if err != nil {
				fmt.Fprintf(&got, "[%s]\n", strings.Replace(err.Error(), " status", "", 1))
			}
		}
	}
	golden(w.T, name, got.String())
}

// until runs a command until it succeeds.
func (w *walk) until(command string) {
	w.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		out, err := w.bash(w.dir, command)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// golden compares a transcript with its file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "commands", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	have, wanted := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(have), len(wanted)) {
		if i >= len(have) || i >= len(wanted) || have[i] != wanted[i] {
			t.Fatalf("%s differs from line %d on (-update writes it anew):\n%s\nwant\n%s", path, i+1,
				strings.Join(have[i:min(i+12, len(have))], "\n"), strings.Join(wanted[i:min(i+12, len(wanted))], "\n"))
		}
	}
}

// unstable are the parts of an output that differ between labs, with their replacements. Package page covers the parts
// that differ between any two runs.
var unstable = []struct {
	what *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`(?m)^(\S+ +)\d+( +runs )`), "${1}PID${2}"},
	{regexp.MustCompile(`("(pid|residentKB|resident[A-Za-z]*)": )\d+`), "${1}N"},
	{regexp.MustCompile(`("slice": "[a-z-]+)-[a-z0-9]{5}"`), `$1-XXXXX"`},
}

// stable replaces the parts of an output that differ between runs.
func (l *lab) stable(text string) string {
	text = strings.NewReplacer(l.dir(), "/var/lib/fairway-lab-LAB", l.name, "LAB", ":"+strconv.Itoa(l.port), ":PORT", built.images, "IMAGES").Replace(text)
	for _, u := range unstable {
		text = u.what.ReplaceAllString(text, u.text)
	}
	return docpage.Stable(text)
}
