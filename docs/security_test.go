package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurity: each threat of the table in threats.md, and each fault of others in networkpolicy-tests.md, names tests, each
// behind its package, and they are there.
func TestSecurity(t *testing.T) {
	testsOf(t, "threats.md", "## Which test shows what", `^\| \d+ \|`, 19)
	testsOf(t, "networkpolicy-tests.md", "## Faults that others published", `^\| [a-zA-Z-]+[-#]\d`, 9)
	testsOf(t, "networkpolicy-tests.md", "## Faults that others published", `^\| (CVE|GHSA)-`, 7)
}

// testsOf looks at the rows of the section that heading begins.
func testsOf(t *testing.T, file, heading, pattern string, atLeast int) {
	t.Helper()
	_, table, _ := strings.Cut(read(t, file), heading)
	table, _, _ = strings.Cut(table, "\n## ")
	row, word := regexp.MustCompile(pattern), regexp.MustCompile("`([a-z/]+)`|\\bTest[A-Za-z0-9]+")
	rows := 0
	for line := range strings.Lines(table) {
		if !row.MatchString(line) {
			continue
		}
		rows++
		tests, dir := 0, ""
		for _, m := range word.FindAllStringSubmatch(line, -1) {
			if m[1] != "" {
				dir = m[1]
				continue
			}
			if tests++; !hasTest(t, dir, m[0]) {
				t.Errorf("package %q has no %s: %s", dir, m[0], line)
			}
		}
		if tests == 0 {
			t.Errorf("it names no test: %s", line)
		}
	}
	if rows < atLeast {
		t.Errorf("%s: the table %s has %d rows", file, heading, rows)
	}
}

// hasTest reports whether a package, named without internal/, has a test.
func hasTest(t *testing.T, dir, name string) bool { return testFile(t, dir, name) != "" }

// testFile is the text of the file with a test; empty: there is none.
func testFile(t *testing.T, dir, name string) string {
	t.Helper()
	for _, above := range []string{"../internal", "..", "../lab"} {
		files, err := filepath.Glob(filepath.Join(above, dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if text := read(t, file); strings.Contains(text, "\nfunc "+name+"(t ") {
				return text
			}
		}
	}
	return ""
}
