package cluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/docpage"
)

// walked matches a block of a page that a test runs in a lab.
//
//	<!-- walk: NAME -->
//	```
//	$ COMMAND          run with kubectl and fairway as the cluster's administrator; a here-document goes on until END
//	node-1# COMMAND    run on this node
//	client$ COMMAND    run outside of the cluster
//	OUTPUT             compared as docpage does; a command without output may print anything
//	```
var walked = regexp.MustCompile("(?s)<!-- walk: ([^>]*) -->\n```\n(.*?)```\n")

// looking matches commands that change nothing. They are repeated until their output is as the page shows it.
var looking = regexp.MustCompile(`^(kubectl (-n \S+ )?(get|describe|logs|exec)|fairway (status|explain|policy)|kubectl fairway|curl|ip) ?`)

// prompt matches the beginning of a command.
var prompt = regexp.MustCompile(`^(\$|(?:node-(\d))#|client\$) (.*)`)

// A page is walked by a function, which runs its blocks in their order with what happens between them.
type page struct {
	path string
	walk func(*walk, map[string][]shown)
}

// pages walks pages, one after the other, and fails the test for a block that no step runs.
func (w *walk) pages(all []page) {
	for _, p := range all {
		if !w.Run(filepath.Base(p.path), func(t *testing.T) {
			w := w.sameDir(t)
			blocks := w.pageBlocks(p.path)
			p.walk(w, blocks)
			for name := range blocks {
				t.Errorf("%s: no step of the test runs the block %q", p.path, name)
			}
		}) {
			return
		}
	}
}

// A shown is a command of a page with the output there.
type shown struct{ node, command, output string }

// pageBlocks returns the blocks of a page by name.
func (w *walk) pageBlocks(page string) map[string][]shown {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		w.Fatal(err)
	}
	blocks := map[string][]shown{}
	for _, m := range walked.FindAllStringSubmatch(string(text), -1) {
		blocks[m[1]] = append(blocks[m[1]], commandsOf(m[2])...)
	}
	if len(blocks) == 0 {
		w.Fatalf("%s has no block <!-- walk: NAME -->", page)
	}
	return blocks
}

// commandsOf splits a block at its prompts.
func commandsOf(block string) (all []shown) {
	inside := false // a here-document
	for line := range strings.Lines(block) {
		m := prompt.FindStringSubmatch(line)
		switch {
		case inside:
			all[len(all)-1].command += "\n" + strings.TrimSuffix(line, "\n")
			inside = line != "END\n"
		case m != nil:
			who := m[2]
			if strings.HasPrefix(m[1], "client") {
				who = "client"
			}
			all = append(all, shown{node: who, command: m[3]})
			inside = strings.HasSuffix(m[3], "<<END")
		case len(all) > 0:
			all[len(all)-1].output += line
		}
	}
	return all
}

// block runs a named block of a page.
func (w *walk) block(blocks map[string][]shown, name string) {
	w.Helper()
	if len(blocks[name]) == 0 {
		w.Fatalf("the page has no block %q", name)
	}
	for _, s := range blocks[name] {
		w.show(s)
	}
	delete(blocks, name)
}

// show runs a command until it prints what the page shows.
func (w *walk) show(s shown) {
	w.Helper()
	line := s.command
	switch s.node {
	case "":
	case "client":
		line = "fairway-lab client -- bash -c '" + strings.ReplaceAll(line, "'", `'\''`) + "'"
	default:
		line = "fairway-lab node " + s.node + " -- bash -c '" + strings.ReplaceAll(line, "'", `'\''`) + "'"
	}
	refusal := strings.Contains(s.output, "error: ") || strings.Contains(s.output, "exit code") || strings.Contains(s.output, "\nrequests: ")
	looks := looking.MatchString(s.command) && s.output != "" // its exit status may say what it sees
	began := time.Now()
	for end := began.Add(30 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		out, err := w.bash(w.dir, line)
		if ((err != nil) == refusal || looks) && (s.output == "" || docpage.Matches(s.output, out)) {
			if took := time.Since(began); took > 3*time.Second {
				w.Logf("%.1f s: %s", took.Seconds(), s.command)
			}
			return
		}
		if !looking.MatchString(s.command) || time.Now().After(end) {
			w.Fatalf("$ %s\n%v\n%s\nand the page shows\n%s", s.command, err, out, s.output)
		}
	}
}
