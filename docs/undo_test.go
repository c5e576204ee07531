package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// wayBack matches the commands that go back from something.
var wayBack = regexp.MustCompile(strings.Join([]string{
	`fairway (?:uninstall|rollback)`, `helm (?:uninstall|rollback)`, `cleanup=true`,
	`delete -k [a-z/.-]+`, `delete -f [a-z/.-]+`, `apply -k deploy/cleanup`, `rollout undo \S+[a-z]`, `nft delete table inet [a-z-]+`, `PROXY_MODE: none`,
	`(?:[a-z-]+ )*--cleanup`, `--undo`,
}, "|"))

// TestWaysBack: each command of a document that goes back from something is in the table of undo.md, whose tests
// are there.
func TestWaysBack(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "undo.md"), "## Ways back\n")
	table, _, _ = strings.Cut(table, "\n## ")
	testsOf(t, "undo.md", "## Ways back", "^\\| `[^|]*\\|.*Test", 14)
	listed := map[string]bool{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, c := range wayBack.FindAllString(cells[1], -1) {
				listed[c] = true
			}
		}
	}
	found := 0
	for _, page := range append(pages(t), "../examples/two-tier/README.md", "../deploy/cleanup/kustomization.yaml", "../deploy/edge/fairway-edge.service") {
		text := strings.ReplaceAll(read(t, page), table, "")
		for _, c := range wayBack.FindAllString(text, -1) {
			if found++; !listed[strings.TrimSuffix(c, ".")] && !listed[c] {
				t.Errorf("%s: %q is not among the ways back of undo.md", page, c)
			}
		}
	}
	if found < 20 {
		t.Errorf("the documents have %d ways back", found)
	}
}
