package edge

import (
	"bufio"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

var update = flag.Bool("update", false, "write the golden tables of testdata again")

// TestScenarios: a configuration, nodes with what they answer, and objects in; the table and the
// problems out. A node is a line: NAME ADDRESS[,ADDRESS] passing|failing|silent|unprobed [weight=N]
// [excluded]. The objects are those of the policy's scenarios.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{}
			for _, f := range archive.Files {
				files[f.Name] = string(f.Data)
			}
			got := compiled(t, files)
			if got == files["table"] {
				return
			}
			if !*update {
				t.Errorf("got\n%s\nwant (go test -update writes it)\n%s", got, files["table"])
				return
			}
			archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "table" })
			archive.Files = append(archive.Files, txtar.File{Name: "table", Data: []byte(got)})
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// compiled returns the table of a scenario, and its problems.
func compiled(t *testing.T, files map[string]string) string {
	t.Helper()
	cfg, err := Parse([]byte(files["config.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := scenario.Parse([]byte("node none\n-- objects.yaml --\n" + files["objects.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	nodes, results := readNodes(t, files["nodes"])
	var addrs []netip.Addr
	for _, n := range nodes {
		addrs = append(addrs, n.Addrs...)
	}
	facts := service.Facts{Node: cfg.Node(addrs, nil, nil, 0)}
	b := service.NewBuilder()
	for _, svc := range objects.Services {
		eps := objects.SlicesOf(svc.Name)
		if cfg.TargetType == TargetInstance {
			svc, eps = service.Instances(svc, nodes, func(a netip.Addr) service.ProbeResult { return results[a] })
		}
		b.Set(service.Compile(svc, eps, facts))
	}
	table := b.Table(facts.Settings)
	var lines []string
	for e := range table.Entries() {
		for _, p := range e.Problems {
			lines = append(lines, fmt.Sprintf("problem of %v: %s: %s\n", e.Name, p.Reason, p.Message))
		}
	}
	slices.Sort(lines)
	return table.String() + strings.Join(lines, "")
}

func readNodes(t *testing.T, text string) (nodes []service.Instance, results map[netip.Addr]service.ProbeResult) {
	t.Helper()
	results = map[netip.Addr]service.ProbeResult{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 3 {
			t.Fatalf("node %q: want NAME ADDRESS STATE", lines.Text())
		}
		n, r := service.Instance{Name: f[0]}, service.ProbeResult{}
		for r.State.String() != f[2] {
			r.State++
		}
		for _, more := range f[3:] {
			if w, ok := strings.CutPrefix(more, "weight="); ok {
				weight, err := strconv.ParseUint(w, 10, 16)
				if err != nil {
					t.Fatal(err)
				}
				r.Weight = uint16(weight)
			} else if n.Excluded = "it is excluded"; more != "excluded" {
				t.Fatalf("node %s: %q is neither weight=N nor excluded", f[0], more)
			}
		}
		for _, a := range strings.Split(f[1], ",") {
			n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
			results[n.Addrs[len(n.Addrs)-1]] = r
		}
		nodes = append(nodes, n)
	}
	return nodes, results
}
