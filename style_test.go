// Package fairway holds the tests of the tree's structure; it has no code.
package fairway

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/fairway-net/fairway"

// Caps. A function that outgrows its cap hides a second one; a file, a second noun; the program
// itself, something that a package should know.
const (
	maxFunc = 70
	maxFile = 500
	maxMain = 700 // all of cmd/fairway, without tests
)

// longer lists what may be over a cap, with the reason. Keep it empty.
var longer = map[string]string{}

// A floor is one group of packages: a folder of internal/, or another folder of the root.
type floor struct {
	group string
	may   string // the groups that it may import
}

// law lists the groups from the roof down. A group imports only groups below it, and of these only the ones in its line.
// docs/architecture.md draws it.
var law = []floor{
	{"cmd", "command podnetwork cli text"},
	{"lab", "testing kube datapath image kernel cli text"},
	{"hack", "operate image text deploy"},
	{"testing", "path kube datapath networkpolicy flow service kernel api"},
	{"command", "operate path kube proxy loadbalancer datapath networkpolicy podnetwork gateway flow service dns ipc kernel cli api text deploy"},
	{"operate", "kube loadbalancer datapath podnetwork service ipc kernel api text"},
	{"kube", "path loadbalancer networkpolicy gateway dns service api text"},
	{"path", "networkpolicy podnetwork flow dns service kernel api text"},
	{"proxy", "datapath flow service ipc kernel api"},
	{"loadbalancer", "datapath service ipc kernel cli api text"},
	{"datapath", "flow service kernel api text"},
	{"networkpolicy", "flow ipc kernel api"},
	{"podnetwork", "service ipc kernel api"},
	{"gateway", "service ipc kernel api text"},
	{"flow", "service kernel api text"},
	{"dns", "ipc kernel text"},
	{"service", "api"},
	{"image", ""},
	{"ipc", ""},
	{"kernel", ""},
	{"cli", "text"},
	{"api", ""},
	{"text", ""},
	{"deploy", ""},
}

// pure are packages that decide, and so import the standard library and pure packages only: they are read and tested
// without a kernel and without an API server.
var pure = []string{
	"api", "api/fair", "text", "service", "service/lb", "networkpolicy", "gateway", "loadbalancer/ipam", "loadbalancer/announce",
	"loadbalancer/layer2/election", "podnetwork/egress", "podnetwork/plan", "dns/records", "dns/names", "dns/names/plan", "operate/doctor", "testing/policytest",
	"kernel/checksum", "kernel/numbers", "ipc/isolate", "path", "path/trace", "flow/top",
}

// kubernetes are packages that may import Kubernetes' modules, with the reason.
var kubernetes = map[string]string{
	"kube":                 "the edge to the API server",
	"kube/loadbalancer":    "the edge to the API server, for addresses of load balancers",
	"kube/gateway":         "the edge to the API server, for Gateway API and Ingress",
	"kube/networkpolicy":   "the edge to the API server, for policies",
	"kube/names":           "the edge to the API server, for DNS names outside the cluster",
	"kube/objects":         "the edge to the API server, for administrators' commands",
	"kube/path":            "the edge to the API server, for predictions of a packet's way",
	"operate/ingress":      "the API's types",
	"operate/install":      "kustomize, and the API's types",
	"command/agent/config": "k8s.io/kube-proxy has the types of KubeProxyConfiguration",
	"command/cluster":      "sigs.k8s.io/yaml is a YAML library",
	"cli/configfile":       "sigs.k8s.io/yaml and json are YAML libraries",
	"cli/output":           "sigs.k8s.io/yaml is a YAML library",
	"dns":                  "CoreDNS brings client-go; its interface names a type",
	"testing/conformance":  "tests",
	"testing/scenario":     "tests",
}

// netIPers may use net.IP, with the reason.
var netIPers = map[string]string{
	"internal/datapath/ipvs":   "netlink's routes speak net.IPNet",
	"internal/podnetwork/cni":  "CNI's result types and netlink speak net.IPNet; converted at the edge of each call",
	"internal/podnetwork/node": "netlink speaks net.IPNet",
	"internal/testing/testnet": "netlink speaks net.IPNet",
	"internal/dns":             "miekg/dns records hold net.IP",
	"lab/fabric":               "netlink speaks net.IPNet",
	"lab/node":                 "netlink speaks net.IPNet",
	"lab/pki":                  "x509 certificates hold net.IP",
	"lab/cluster":              "x509 certificates hold net.IP",
}

// source is one parsed file.
type source struct {
	path string // slash separated, from the root
	text []byte
	file *ast.File
	fset *token.FileSet
}

func (s source) dir() string { return path.Dir(s.path) }
func (s source) test() bool  { return strings.HasSuffix(s.path, "_test.go") }
func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// sources parses every Go file of the repository, the lab's module included.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(p), text, f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d Go files only: is this the root of the repository?", len(all))
	}
	return all
}

func TestFormat(t *testing.T) {
	for _, s := range sources(t) {
		want, err := format.Source(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.path, err)
		} else if !bytes.Equal(want, s.text) {
			t.Errorf("%s is not formatted: run gofmt -w %s", s.path, s.path)
		}
	}
}

// TestDocs holds that every package says what it hides and promises.
func TestDocs(t *testing.T) {
	docs := map[string]string{}
	for _, s := range sources(t) {
		if _, ok := docs[s.dir()]; !ok && !s.test() {
			docs[s.dir()] = ""
		}
		if s.file.Doc != nil && !s.test() {
			docs[s.dir()] += s.file.Doc.Text()
		}
	}
	for dir, doc := range docs {
		if len(doc) < 60 {
			t.Errorf("package %s has no package comment worth the name: say what it hides and what it promises", dir)
		}
	}
}

func TestSizes(t *testing.T) {
	program := 0
	for _, s := range sources(t) {
		if s.dir() == "cmd/fairway" && !s.test() {
			program += bytes.Count(s.text, []byte("\n"))
		}
		if n := bytes.Count(s.text, []byte("\n")); n > maxFile && longer[s.path] == "" {
			t.Errorf("%s has %d lines, at most %d: find the second noun in it", s.path, n, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > maxFunc && longer[s.path+":"+f.Name.Name] == "" {
				t.Errorf("%s: %s has %d lines, at most %d: find the second function in it", s.at(f), f.Name.Name, n, maxFunc)
			}
		}
	}
	if program == 0 || program > maxMain {
		t.Errorf("cmd/fairway has %d lines, at most %d: it is the tree of commands, what they do is in internal/command and below", program, maxMain)
	}
}

// TestImportLaw holds who may import whom. It looks at shipped code, not at tests.
func TestImportLaw(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		from := groupOf(s.dir())
		at := slices.IndexFunc(law, func(f floor) bool { return f.group == from })
		if s.test() || from == "test" || from == "examples" || from == "docs" || from == "." {
			continue
		}
		if at < 0 {
			t.Errorf("%s: group %s is not in the law: decide what it may import", s.path, from)
			continue
		}
		seen[from] = true
		pkg := strings.TrimPrefix(s.dir(), "internal/")
		for _, i := range s.file.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			ours, isOurs := strings.CutPrefix(p, module+"/")
			to := groupOf(ours)
			switch {
			case isOurs && to != from && !slices.Contains(strings.Fields(law[at].may), to):
				t.Errorf("%s imports %s: the law lets %s import %q only", s.path, ours, from, law[at].may)
			case isOurs && slices.Contains(pure, pkg) && !slices.Contains(pure, strings.TrimPrefix(ours, "internal/")):
				t.Errorf("%s imports %s, which is not pure: the list pure says why this package must be", s.path, ours)
			case !isOurs && slices.Contains(pure, pkg) && strings.Contains(strings.SplitN(p, "/", 2)[0], "."):
				t.Errorf("%s imports %s: a pure package has the standard library only", s.path, p)
			case !isOurs && strings.Contains(p, "k8s.io/") && strings.HasPrefix(s.dir(), "internal/") && kubernetes[pkg] == "":
				t.Errorf("%s imports %s: only the packages in the list kubernetes may", s.path, p)
			}
		}
	}
	for _, f := range law {
		if !seen[f.group] {
			t.Errorf("the law names %s, which has no code", f.group)
		}
	}
}

// groupOf returns the group of a directory or an import path from the root: internal/flow/reset is in flow.
func groupOf(dir string) string {
	dir = strings.TrimPrefix(dir, "internal/")
	group, _, _ := strings.Cut(dir, "/")
	return group
}

// TestLawPointsDown holds that a group of the law may import only groups further down in it, so that no circle exists, and
// that docs/architecture.md draws the law as it is.
func TestLawPointsDown(t *testing.T) {
	if len(law) > 26 {
		t.Errorf("%d groups, at most 26: put the new one into one that exists", len(law))
	}
	var drawn strings.Builder
	for i, f := range law {
		for to := range strings.FieldsSeq(f.may) {
			if !slices.ContainsFunc(law[i+1:], func(below floor) bool { return below.group == to }) {
				t.Errorf("%s may import %s, which is not below it", f.group, to)
			}
		}
		fmt.Fprintf(&drawn, "%-14s %s\n", f.group, cmp.Or(f.may, "-"))
	}
	doc, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(doc, []byte("```\n"+drawn.String()+"```\n")) {
		t.Errorf("docs/architecture.md does not draw the law; it has to have the block:\n```\n%s```", drawn.String())
	}
}

// TestForbidden holds what reviewers would otherwise have to look for.
func TestForbidden(t *testing.T) {
	for _, s := range sources(t) {
		var above []ast.Node
		ast.Inspect(s.file, func(n ast.Node) bool {
			if n == nil {
				above = above[:len(above)-1]
				return true
			}
			above = append(above, n)
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: func init: build it by hand, from main down", s.at(n))
				}
			case *ast.SelectorExpr:
				forbidden(t, s, n, above)
			}
			return true
		})
	}
}

func forbidden(t *testing.T, s source, n *ast.SelectorExpr, above []ast.Node) {
	x, ok := n.X.(*ast.Ident)
	if !ok {
		return
	}
	switch x.Name + "." + n.Sel.Name {
	case "context.TODO":
		t.Errorf("%s: context.TODO: take the caller's", s.at(n))
	case "time.Sleep":
		// In a loop it is the pause between two looks at a condition.
		loop := func(n ast.Node) bool {
			switch n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				return true
			}
			return false
		}
		if !slices.ContainsFunc(above, loop) {
			t.Errorf("%s: time.Sleep outside a loop: wait for what you wait for", s.at(n))
		}
	case "netlink.NewHandle", "netlinksafe.NewHandle":
		// Functions of that package have a limit of a minute; a handle has none.
		if !s.test() && !strings.HasSuffix(s.dir(), "testnet") && !calls(above, "SetSocketTimeout") {
			t.Errorf("%s: %s.NewHandle without SetSocketTimeout: the kernel may never answer", s.at(n), x.Name)
		}
	case "net.IP":
		if _, ok := netIPers[s.dir()]; !ok && !s.test() {
			t.Errorf("%s: net.IP: use netip.Addr, or list the package with its reason", s.at(n))
		}
	}
}

// calls reports whether the function around a node calls a method of that name.
func calls(above []ast.Node, method string) (found bool) {
	for _, n := range above {
		if f, ok := n.(*ast.FuncDecl); ok {
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				found = found || ok && sel.Sel.Name == method
				return true
			})
		}
	}
	return found
}
