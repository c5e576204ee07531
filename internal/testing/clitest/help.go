// Package clitest tests the help texts of a program.
//
//	each command ──→ help text ─┬─ compared with testdata/help/NAME.txt
//	                            └─ words: an example, value names that are words, no type of Go
//
// So a change of a help text is always a change of a file, which a reviewer sees.
package clitest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// goTypes are the texts that a flag shows if its value has no name.
var goTypes = []string{"string", "strings", "stringArray", "stringToString", "int", "int32", "int64", "uint", "uint16", "float", "float32", "float64"}

var capital = regexp.MustCompile(`^[A-Z][a-z]`)

// Help compares the help of every command of root with a file in dir, and checks its words. Commands that a library
// provides need no example. If update is set, Help writes the files.
func Help(t *testing.T, root *cobra.Command, dir string, update bool, theirs ...string) {
	t.Helper()
	files := map[string]bool{}
	visit(root, func(c *cobra.Command) {
		name := strings.ReplaceAll(strings.TrimPrefix(c.CommandPath(), root.Name()+" "), " ", "-") + ".txt"
		files[name] = true
		words(t, c, slices.Contains(theirs, c.Name()))
		text := help(t, c)
		path := filepath.Join(dir, name)
		if update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || string(want) != text {
			t.Errorf("%s --help (%v), write it with -update and read it:\n%s\nwant\n%s", c.CommandPath(), err, text, want)
		}
	})
	all, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if !files[filepath.Base(path)] {
			t.Errorf("%s is of no command", path)
		}
	}
}

// visit calls f for c and all visible commands below it.
func visit(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		// The completion commands and their texts are cobra's.
		if sub.IsAvailableCommand() && c.Name() != "completion" {
			visit(sub, f)
		}
	}
}

func help(t *testing.T, c *cobra.Command) string {
	t.Helper()
	var out bytes.Buffer
	c.SetOut(&out)
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	if err := c.Help(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// words checks the words of a help text that would confuse a newcomer.
func words(t *testing.T, c *cobra.Command, theirs bool) {
	t.Helper()
	if c.Short == "" || strings.HasSuffix(c.Short, ".") {
		t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
	}
	if !theirs && c.HasParent() && !c.HasExample() {
		t.Errorf("%s --help has no example", c.CommandPath())
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name, text := pflag.UnquoteUsage(f)
		switch {
		case capital.MatchString(name):
			t.Errorf("%s: the value %s of --%s looks like a default: write it small", c.CommandPath(), name, f.Name)
		case slices.Contains(goTypes, name) && !strings.Contains(help(t, c), "--"+f.Name+" number"):
			t.Errorf("%s: --%s %s names a type of Go: name what it takes in backquotes", c.CommandPath(), f.Name, name)
		case strings.HasSuffix(text, "."):
			t.Errorf("%s: --%s: %q ends with a dot", c.CommandPath(), f.Name, text)
		}
	})
}
