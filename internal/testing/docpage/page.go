// Package docpage compares the output of programs with the blocks of the documentation that show it.
//
//	<!-- golden: PACKAGE TEST -->   of PACKAGE, TEST calls Check with the page, COMMAND and its output
//	```
//	$ COMMAND
//	OUTPUT
//	```
//
// A block may differ from the output only in texts that change at each run (Stable), and where the page has "…". Alone on a
// line "…" stands for any lines, elsewhere for any text of its line.
package docpage

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Check fails the test unless a file, the page, shows the output after the command.
func Check(t testing.TB, file, command, output string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := compare(string(text), command, output); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

func compare(text, command, output string) error {
	_, block, found := strings.Cut(text, "```\n$ "+command+"\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !closed {
		return fmt.Errorf("there is no block that begins with %q", "$ "+command)
	}
	if !Matches(block, output) {
		return fmt.Errorf("behind $ %s is\n%s\nand it printed\n%s", command, block, output)
	}
	return nil
}

// Matches reports whether the output is what a page shows.
func Matches(shown, output string) bool {
	return pattern(Stable(shown)).MatchString(Stable(output))
}

// pattern returns the pattern of a block.
func pattern(block string) *regexp.Regexp {
	var re strings.Builder
	for line := range strings.Lines(block) {
		if line == "…\n" {
			re.WriteString(`(.*\n)*?`)
			continue
		}
		re.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*"))
	}
	return regexp.MustCompile(`^` + re.String() + `$`)
}

// unstable has texts that change at each run, with their replacements.
var unstable = []struct {
	what *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`v\d+\.\d+\.\d+-dev(-[0-9a-f]{12})?`), "VERSION"},
	{regexp.MustCompile(`go1\.\d+\.\d+`), "GO"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), "TIME"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(ms|µs|s|m|h|d)(\d+(m|s|h))*\b`), "AGE"},
	{regexp.MustCompile(`\d+ MB\b`), "N MB"},
	{regexp.MustCompile(`settings-hash:[0-9a-f]+`), "settings-hash:HASH"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{7,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-XXXXX"},
	{regexp.MustCompile(`\b(fairway-agent|fairway-cleanup)-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "${1}-XXXXX"},
	{regexp.MustCompile(`10\.244\.\d+\.\d+(/24)?\b`), "10.244.x.x$1"},
	{regexp.MustCompile(`10\.244\.x\.x/16`), "10.244.0.0/16"},
	{regexp.MustCompile(`10\.244\.x\.x:\d{5}->`), "10.244.x.x:PORT->"},
	{regexp.MustCompile(`(\S)  +`), "$1  "}, // the width of a column depends on its texts
	{regexp.MustCompile(`(?m) +$`), ""},
}

// Stable replaces the texts of an output that change at each run: versions, times, names and addresses of pods, and the
// width of columns.
func Stable(text string) string {
	for _, u := range unstable {
		text = u.what.ReplaceAllString(text, u.text)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}
