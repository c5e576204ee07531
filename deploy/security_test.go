package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPrivilegesAreDocumented: the table of docs/privileges.md names each component, in the first cell of a row or as a part of
// what another contains, and in that row each path of the node that it mounts, each capability that it adds, and that it lets
// somebody read pods.
func TestPrivilegesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| part |")
	of := map[string]string{} // by a component's name, its rows
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			for _, m := range regexp.MustCompile("`([a-z0-9/-]+)`").FindAllStringSubmatch(cells[1], -1) {
				of[m[1]] += line
			}
		}
	}
	dirs, err := filepath.Glob("components/*")
	if err != nil || len(dirs) < 10 {
		t.Fatalf("found %d components: %v", len(dirs), err)
	}
	for _, dir := range append(dirs, "cleanup") {
		name := strings.TrimPrefix(dir, "components/")
		if dir == "cleanup" {
			name = "deploy/cleanup"
		}
		rows := of[name]
		if name == "auto" {
			rows += of["iptables"] + of["ipvs"] + of["userspace"] // as its row says
		}
		forDNS := strings.HasPrefix(name, "dns-") // in the row of DNS
		if of[name] == "" && !forDNS {
			t.Errorf("no row of docs/privileges.md has %s in its first cell", name)
		}
		if forDNS {
			rows = table
		}
		for _, want := range privileges(t, dir) {
			if !strings.Contains(rows, want) {
				t.Errorf("docs/privileges.md: %s has %s, and its row does not say so: %s", name, want, rows)
			}
		}
	}
}

var (
	hostPath   = regexp.MustCompile(`hostPath:\s+path: (\S+)`)
	capability = regexp.MustCompile(`(?:value: |add: \[|, )(NET_[A-Z_]+|BPF|PERFMON)`)
	pods       = regexp.MustCompile(`resources: \[[^\]]*\bpods\b`)
)

// privileges are the words that tell what the files of a directory give: paths, capabilities, Pods.
func privileges(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has %d files: %v", dir, len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hostPath.FindAllStringSubmatch(string(text), -1) {
			all = append(all, "`"+m[1]+"`")
		}
		for _, m := range capability.FindAllStringSubmatch(string(text), -1) {
			all = append(all, "CAP_"+m[1])
		}
		if pods.MatchString(string(text)) {
			all = append(all, "Pods")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
