// Package docs_test holds the pages to what the programs say.
//
//	<!-- golden: FILE --> and a block         ─▶ its text, without the command, is in FILE
//	<!-- golden: PACKAGE TEST --> and a block ─▶ TEST is in PACKAGE, in a file that names the page
//	[text](path#heading)                      ─▶ the file and the heading exist
//
// FILE is a golden file that another test compares with real output; TEST compares the block itself with it, by package
// page.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("*.md")
	if err != nil || len(all) < 15 {
		t.Fatalf("found %v: %v", all, err)
	}
	groups, err := filepath.Glob("../internal/*/README.md")
	if err != nil || len(groups) < 15 {
		t.Fatalf("found %v: %v", groups, err)
	}
	return append(append(all, groups...), "../README.md", "../deploy/README.md", "../lab/README.md", "../CONTRIBUTING.md", "../SECURITY.md")
}

var marked = regexp.MustCompile("<!-- golden: (\\S+) -->\n```\n(?s:(.*?))```\n")

// TestGolden: a block that names a golden file has its text from there. "…" alone on a line is what
// was left out.
func TestGolden(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, m := range marked.FindAllStringSubmatch(read(t, page), -1) {
			n++
			source := read(t, filepath.Join("..", m[1]))
			_, block, ok := strings.Cut(m[2], "\n") // the command
			if !ok || !strings.HasPrefix(m[2], "$ ") {
				t.Errorf("%s: a golden block begins with its command: %q", page, m[2])
			}
			for part := range strings.SplitSeq("\n"+block, "\n…\n") {
				_, after, found := strings.Cut("\n"+source, "\n"+strings.TrimPrefix(part, "\n"))
				if !found {
					t.Errorf("%s: %s does not have, at this place:\n%s", page, m[1], part)
				}
				source = after
			}
		}
	}
	if n < 6 {
		t.Errorf("only %d golden blocks were found", n)
	}
}

var made = regexp.MustCompile("<!-- golden: ([a-z/]+) (Test[A-Za-z0-9]+) -->\n```\n\\$ ")

// TestMade: a block that names a test is compared by it.
func TestMade(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, m := range made.FindAllStringSubmatch(read(t, page), -1) {
			n++
			if file := testFile(t, m[1], m[2]); !strings.Contains(file, filepath.Base(page)) {
				t.Errorf("%s: package %s has no %s in a file that names the page", page, m[1], m[2])
			}
		}
	}
	if n < 6 {
		t.Errorf("only %d blocks that name a test were found", n)
	}
}

// allMade are the pages of which every block is real output that a test makes.
var allMade = []string{"troubleshooting.md"}

// TestAllMade: on these pages is no block that nobody compares.
func TestAllMade(t *testing.T) {
	for _, page := range allMade {
		blocks, text := 0, read(t, page)
		for i, part := range strings.Split("\n"+text, "\n```") {
			if i%2 == 0 {
				text = part // before the block
				continue
			}
			blocks++
			_, last, _ := cutLast(text, "\n")
			if block := last + "\n```" + part + "\n```\n"; !marked.MatchString(block) && !made.MatchString(block) {
				t.Errorf("%s: no test makes this block; write <!-- golden: … --> before it:%s", page, part)
			}
		}
		if blocks < 10 {
			t.Errorf("%s: only %d blocks were found", page, blocks)
		}
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inCode  = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	notInID = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks: links between pages lead to files and headings that exist.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(inCode.ReplaceAllString(read(t, page), "`x`"), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, heading, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if heading != "" && !headings(read(t, target))[heading] {
				t.Errorf("%s: %s has no heading #%s", page, target, heading)
			}
		}
	}
}

// headings are the anchors of a page, as GitHub makes them.
func headings(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		if h := strings.TrimLeft(line, "#"); h != line && strings.HasPrefix(h, " ") {
			h = notInID.ReplaceAllString(strings.ToLower(strings.TrimSpace(h)), "")
			all[strings.ReplaceAll(h, " ", "-")] = true
		}
	}
	return all
}
