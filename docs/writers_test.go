package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// A writes is a right to write: of a component, for a kind of objects.
type writes struct{ who, objects string }

// TestWriters: the table of writers in architecture.md has the components and objects for which deploy/ has roles that write,
// and no others.
func TestWriters(t *testing.T) {
	granted, listed := rolesThatWrite(t), map[writes]bool{}
	_, table, _ := strings.Cut(read(t, "architecture.md"), "## Who writes what to the API server")
	table, _, _ = strings.Cut(table, "\n## ")
	word := regexp.MustCompile("`([a-z0-9]+)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) != 5 {
			continue
		}
		for who := range strings.SplitSeq(cells[2], ", ") {
			for _, m := range word.FindAllStringSubmatch(cells[0], -1) {
				listed[writes{who, m[1]}] = true
			}
		}
	}
	for w, file := range granted {
		if !listed[w] {
			t.Errorf("%s lets the %s write %s: architecture.md does not say what of them", file, w.who, w.objects)
		}
	}
	for w := range listed {
		if granted[w] == "" && !strings.HasPrefix(w.who, "`fairway ") { // an administrator's own rights
			t.Errorf("architecture.md: the %s writes %s: no role in deploy/ lets it", w.who, w.objects)
		}
	}
}

// rolesThatWrite are what the roles of deploy/ let components write, with the file.
func rolesThatWrite(t *testing.T) map[writes]string {
	t.Helper()
	all := map[writes]string{}
	err := filepath.WalkDir("../deploy", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "rbac.yaml") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for one := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.ClusterRole // a Role has the same fields
			if err := yaml.Unmarshal([]byte(one), &role); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			who, ours := strings.CutPrefix(role.Labels["app.kubernetes.io/name"], "fairway-")
			for _, r := range role.Rules {
				if !slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) }) {
					continue
				}
				if !ours {
					t.Errorf("%s: role %s writes, and is no component's", path, role.Name)
				}
				for _, objects := range r.Resources {
					objects, _, _ = strings.Cut(objects, "/")
					all[writes{who, objects}] = path
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
