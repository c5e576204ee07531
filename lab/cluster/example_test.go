package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// testExample runs the commands of examples/two-tier/README.md, from the first to "Clean up". It then checks that the
// cluster and the nodes' rules are as before.
func (l *lab) testExample() {
	const doc = "../../examples/two-tier/README.md"
	text, err := os.ReadFile(doc)
	if err != nil {
		l.Fatal(err)
	}
	_, commands, _ := strings.Cut(string(text), "```sh\n")
	commands, _, _ = strings.Cut(commands, "```")
	before, clean, ok := strings.Cut(commands, "# Clean up.\n")
	if !ok {
		l.Fatalf("%s has no part that cleans up", doc)
	}
	dir := l.exampleDir()
	out := l.follows(dir, before)
	for _, want := range []string{`{"job":`, "Name:\tbackend-service.default.svc.cluster.local", `successfully rolled out`} {
		if !strings.Contains(out, want) {
			l.Errorf("%s: there is no %q in\n%s", doc, want, out)
		}
	}
	addresses := strings.Fields(l.run("kubectl", "get", "service", "backend-service", "frontend-service", "-o", "jsonpath={.items[*].spec.clusterIP}"))
	if rules := l.rules(); len(addresses) != 2 || !strings.Contains(rules, addresses[0]) || !strings.Contains(rules, addresses[1]) {
		l.Errorf("the nodes' rules lack one of %v", addresses)
	}
	first, _, _ := strings.Cut(before, "\n") // the line defines k
	l.follows(dir, first+"\n"+clean)
	left := func() (all []string) {
		for line := range strings.Lines(l.run("kubectl", "get", "pods,replicasets,deployments,services,endpointslices", "-o", "name")) {
			if strings.Contains(line, "backend") || strings.Contains(line, "frontend") || line == "pod/client\n" {
				all = append(all, line)
			}
		}
		rules := l.rules()
		return append(all, slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return !strings.Contains(rules, a) })...)
	}
	for end := time.Now().Add(patience); len(left()) > 0; time.Sleep(200 * time.Millisecond) { // pods take some time to end
		if time.Now().After(end) {
			l.Fatalf("%s: its clean-up leaves %v", doc, left())
		}
	}
}

// exampleDir is as the root of the repository: with bin/fairway-lab, which is this lab's, and the examples.
func (l *lab) exampleDir() string {
	dir := l.TempDir()
	examples, err := filepath.Abs("../../examples")
	if err == nil {
		err = os.Symlink(examples, filepath.Join(dir, "examples"))
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "bin"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "bin/fairway-lab"), []byte("#!/bin/sh\nexec "+built.lab+" --name "+l.name+" \"$@\"\n"), 0o755)
	}
	if err != nil {
		l.Fatal(err)
	}
	return dir
}

// follows runs the commands of a document, and each command must succeed.
func (l *lab) follows(dir, commands string) string {
	l.Helper()
	cmd := exec.CommandContext(l.Context(), "bash", "-euxc", commands)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.Fatalf("%v:\n%s", err, out)
	}
	return string(out)
}

// rules returns the rules of both nodes.
func (l *lab) rules() string {
	return l.run("node", "1", "--", "nft", "list", "ruleset") + l.run("node", "2", "--", "nft", "list", "ruleset")
}
