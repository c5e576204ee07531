package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestArticles runs the steps of the articles that Fairway began with. The files of testdata/articles have their
// commands and the expected output. They also tell the differences from the article, with the reasons. One lab runs all
// articles: first with kube-proxy, then with Fairway in mode iptables, which takes over as in deploy/README.md.
//
//	$ COMMAND      run by bash; kubectl, lab (fairway-lab), node and client (its commands) are available
//	! COMMAND      the same, but it has to fail
//	NAME= COMMAND  the output becomes a variable for all later steps
//	doc NAME       the commands with that name in a document, in the directory of the overlay
//	> PATTERN      a regular expression for the output of the step before; a blank matches any number of them
//	-- FILE --     the rest up to the next such line is a file in the directory of the commands
//
// A failed step is repeated for a while, because objects become ready in their own time
func TestArticles(t *testing.T) {
	first(t, 3)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "3", "--kube-proxy", built.kubeProxy, "--proxy-mode", "iptables")...)
	files, err := filepath.Glob("testdata/articles/*.txt")
	if err != nil || len(files) != 6 {
		t.Fatalf("the articles are %v, %v", files, err)
	}
	w := &walk{lab: l, docs: docs(t), vars: []string{"DIR=" + l.dir()}}
	w.tools(t.TempDir())
	for _, file := range files {
		if !t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { w.in(t).article(file) }) {
			return // the next step depends on the result of this one
		}
	}
}

// A walk is the common state of the steps of articles.
type walk struct {
	*lab
	docs map[string]string
	vars []string // NAME=value
	dir  string   // directory in which commands run
}

func (w *walk) in(t *testing.T) *walk {
	c := *w
	c.lab, c.dir = w.lab.in(t), t.TempDir()
	return &c
}

// tools makes the programs that the articles use, in a directory of PATH.
func (w *walk) tools(dir string) {
	lab := "exec " + built.lab + " --name " + w.name
	for name, text := range map[string]string{"lab": lab, "node": lab + " node", "client": lab + " client"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+" \"$@\"\n"), 0o755); err != nil {
			w.Fatal(err)
		}
	}
	// kubectl config set-context must not change the kubeconfig of other commands.
	text, err := os.ReadFile(filepath.Join(w.lab.dir(), "kubeconfig"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "kubeconfig"), text, 0o600)
	}
	if err == nil {
		err = os.Symlink(built.lab, filepath.Join(dir, "kubectl"))
	}
	if err == nil {
		err = os.Symlink(built.fairway, filepath.Join(dir, "fairway"))
	}
	if err != nil {
		w.Fatal(err)
	}
	w.vars = append(w.vars, "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
}

// article runs the steps of one file.
func (w *walk) article(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	parts := regexp.MustCompile(`(?m)^-- (\S+) --\n`).Split(string(text), -1)
	names := regexp.MustCompile(`(?m)^-- (\S+) --\n`).FindAllStringSubmatch(string(text), -1)
	for i, name := range names {
		if err := os.WriteFile(filepath.Join(w.dir, name[1]), []byte(parts[i+1]), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	script := strings.ReplaceAll(parts[0], "\\\n", "")
	lines := strings.Split(strings.TrimSpace(script), "\n")
	for i := 0; i < len(lines); {
		command := lines[i]
		var want []string
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "> "); i++ {
			want = append(want, lines[i][2:])
		}
		if command != "" && !strings.HasPrefix(command, "#") {
			w.step(command, want)
		}
	}
}

// capture matches a step that stores its output in a variable.
var capture = regexp.MustCompile(`^([A-Z]+)= (.*)`)

// step runs one command until its output matches the wanted patterns.
func (w *walk) step(command string, want []string) {
	w.Helper()
	dir, name, fails := w.dir, "", false
	kind, line, _ := strings.Cut(command, " ")
	switch m := capture.FindStringSubmatch(command); {
	case m != nil:
		name, line = m[1], m[2]
	case kind == "doc" && w.docs[line] != "":
		dir, line = filepath.Join(w.lab.dir(), "overlay"), w.docs[line]
	case kind == "!":
		fails = true
	case kind != "$":
		w.Fatalf("%q is no step", command)
	}
	var out string
	var err error
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		out, err = w.bash(dir, line)
		missing := w.missing(out, want)
		if (err != nil) == fails && missing == "" && (name == "" || strings.TrimSpace(out) != "") {
			break
		}
		if time.Now().After(end) {
			w.Fatalf("%s\n%v, wanted %q:\n%s", command, err, missing, out)
		}
	}
	if name != "" {
		w.vars = append(w.vars, name+"="+strings.TrimSpace(out))
	}
}

func (w *walk) bash(dir, line string) (string, error) {
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), w.vars...), time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// missing returns the first pattern that the output does not match.
func (w *walk) missing(out string, want []string) string {
	for _, pattern := range want {
		for _, v := range slices.Backward(w.vars) { // the newest value of a name counts, as it does for commands
			name, value, _ := strings.Cut(v, "=")
			pattern = strings.ReplaceAll(pattern, "${"+name+"}", regexp.QuoteMeta(value))
		}
		blanks, err := regexp.Compile(strings.ReplaceAll(pattern, " ", `\s+`))
		if err != nil {
			w.Fatal(fmt.Errorf("pattern %q: %w", pattern, err))
		}
		if !blanks.MatchString(out) {
			return pattern
		}
	}
	return ""
}
