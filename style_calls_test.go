package fairway

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unlimited are the files whose child processes may run for as long as they like, with the reason.
var unlimited = map[string]string{
	"lab/node/store.go":     "containerd, which is stopped when the images are in its store",
	"lab/cluster/start.go":  "the parts of a lab, which outlive the command that starts them",
	"lab/cluster/edge.go":   "an edge of the lab",
	"lab/cluster/router.go": "a router of the lab",
	"lab/cluster/exec.go":   "the command of a user, at a terminal",
}

// TestChildren: a child process has a context, and so an end: programs hang, where the kernel does or a lock is held.
func TestChildren(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() || strings.HasPrefix(s.path, "test/") || s.dir() == "internal/testing/testnet" || s.dir() == "internal/testing/conformance" {
			continue
		}
		for _, c := range callsOf(s.file, "exec", "Command") {
			if seen[s.path] = true; unlimited[s.path] == "" {
				t.Errorf("%s: exec.Command: use exec.CommandContext with a deadline, or list the file with its reason", s.at(c))
			}
		}
	}
	for path := range unlimited {
		if !seen[path] {
			t.Errorf("%s starts no process without a limit: take it from the list", path)
		}
	}
}

// callsOf are the calls of a package's function.
func callsOf(file *ast.File, pkg, name string) (all []*ast.CallExpr) {
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if f, ok := c.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == name {
				if x, ok := f.X.(*ast.Ident); ok && x.Name == pkg {
					all = append(all, c)
				}
			}
		}
		return true
	})
	return all
}

// contracts are packages whose interfaces have no hidden half: what their values can do, Capabilities say.
var contracts = map[string]bool{"datapath": true, "takeover": true, "flow": true, "conformance": true, "proxy": true, "modes": true}

// TestNoHiddenHalf: nobody asks a value for a second interface, or for the type behind a contract.
func TestNoHiddenHalf(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || !strings.HasPrefix(s.path, "internal/") && !strings.HasPrefix(s.path, "cmd/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			a, ok := n.(*ast.TypeAssertExpr)
			if !ok {
				return true
			}
			switch of := a.Type.(type) {
			case *ast.StarExpr:
				if of, ok := of.X.(*ast.SelectorExpr); ok && inContract(of) {
					t.Errorf("%s: a type assertion to *%s.%s: hand over what is known where it is made", s.at(a), of.X, of.Sel.Name)
				}
			case *ast.SelectorExpr:
				if inContract(of) {
					t.Errorf("%s: a type assertion to %s.%s: it belongs to the contract, as a method or as data", s.at(a), of.X, of.Sel.Name)
				}
			case *ast.Ident:
				if strings.HasPrefix(s.path, "internal/datapath/") && ast.IsExported(of.Name) {
					t.Errorf("%s: a type assertion to %s: it belongs to the contract, as a method or as data", s.at(a), of.Name)
				}
			}
			return true
		})
	}
}

func inContract(of *ast.SelectorExpr) bool {
	x, ok := of.X.(*ast.Ident)
	return ok && contracts[x.Name]
}

// cut are the errors whose chains end on purpose, by file, with the reason.
var cut = map[string]string{
	"internal/podnetwork/cni/verbs.go": "the CNI code is that of the first error, not of what failed while cleaning up",
}

var verb = regexp.MustCompile(`%[-+# 0]*[\d.]*([a-zA-Z%])`)

// TestChains: an error that has another one as its cause wraps it, so that errors.Is finds it.
func TestChains(t *testing.T) {
	n := 0
	for _, s := range sources(t) {
		if s.test() || strings.HasPrefix(s.path, "test/") || cut[s.path] != "" {
			continue
		}
		for _, c := range callsOf(s.file, "fmt", "Errorf") {
			text, ok := literal(c.Args[0])
			if !ok || strings.Contains(text, "%[") {
				continue
			}
			verbs := verb.FindAllStringSubmatch(strings.ReplaceAll(text, "%%", ""), -1)
			for i, a := range c.Args[1:] {
				if i >= len(verbs) || !isError(a) {
					continue
				}
				if n++; verbs[i][1] != "w" {
					t.Errorf("%s: %q: write %%w for the error, or list the file with its reason", s.at(c), text)
				}
			}
		}
		for _, c := range callsOf(s.file, "errors", "New") {
			ast.Inspect(c, func(n ast.Node) bool {
				if f, ok := n.(*ast.SelectorExpr); ok && f.Sel.Name == "Error" {
					t.Errorf("%s: errors.New of another error's text: wrap it", s.at(c))
				}
				return true
			})
		}
	}
	if n < 500 {
		t.Errorf("only %d wrapped errors were found", n)
	}
}

// isError reports whether an argument is an error, by its name: err, failed.Err, readErr, or its text.
func isError(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "err" || strings.HasPrefix(x.Name, "err") && len(x.Name) == 4 || strings.HasSuffix(x.Name, "Err")
	case *ast.SelectorExpr:
		return x.Sel.Name == "Err" || x.Sel.Name == "err"
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && len(x.Args) == 0 && (f.Sel.Name == "Error" || f.Sel.Name == "Err") && isError(f.X)
	}
	return false
}

// A writer is a row of docs/architecture.md: objects of the API server, what of them a file of internal/kube writes, and as whom.
type writer struct{ objects, owner, file string }

var writerRow = regexp.MustCompile("(?m)^\\| (`[a-z0-9`, ]+`) \\| .+ \\| .+ \\| (?:`([a-z-]+)`|–) \\| `([a-z0-9/]+\\.go)` \\|$")

// writers reads the table.
func writers(t *testing.T) (all []writer) {
	t.Helper()
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Who writes what to the API server")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range writerRow.FindAllStringSubmatch(table, -1) {
		all = append(all, writer{m[1], m[2], m[3]})
	}
	if rows := strings.Count(table, "\n| `"); len(all) != rows {
		t.Errorf("of %d rows of the table of writers %d are understood", rows, len(all))
	}
	return all
}

// writing are the words by which a file that changes objects is found: options of requests, and client-go's election.
var writing = []string{"CreateOptions", "PatchOptions", "UpdateOptions", "ApplyOptions", "DeleteOptions", "UpdateStatus", "ApplyStatus", "LeaseLock"}

// TestOneOwnerOfAField: what writes to the API server is listed with its fields in docs/architecture.md, and no two status
// writers have one owner for one kind, which would remove each other's fields.
func TestOneOwnerOfAField(t *testing.T) {
	listed := writers(t)
	seen, owners, names := map[string]bool{}, map[string]string{}, constants(t, "internal/kube")
	for _, s := range sources(t) {
		if s.test() || !strings.HasPrefix(s.dir(), "internal/") || s.dir() == "internal/kube/objects" || s.dir() == "internal/operate/install" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				name := strings.TrimPrefix(s.path, "internal/kube/")
				if !slices.Contains(writing, n.Sel.Name) || name == "status.go" || name == "customresource.go" { // StatusWriter and Store.ApplyStatus, by which others write
					return true
				}
				if seen[name] = true; !slices.ContainsFunc(listed, func(w writer) bool { return w.file == name }) {
					t.Errorf("%s: %s: list the file in docs/architecture.md with what it writes, which nobody else may write", s.at(n), n.Sel.Name)
				}
			case *ast.CompositeLit:
				if i, ok := n.Type.(*ast.IndexExpr); ok && (fmt.Sprint(i.X) == "StatusConfig" || fmt.Sprint(i.X) == "&{kube StatusConfig}") {
					checkOwner(t, s, n, owners, names, listed)
				}
			}
			return true
		})
	}
	for _, w := range listed {
		if !seen[w.file] {
			t.Errorf("%s writes nothing to the API server: take it from docs/architecture.md", w.file)
		}
	}
	if len(owners) < 7 {
		t.Errorf("only %d StatusWriters were found: %v", len(owners), owners)
	}
}

// checkOwner looks at a StatusWriter: no other one has its owner and its kind, and the table has both, with its file.
func checkOwner(t *testing.T, s source, n *ast.CompositeLit, owners, names map[string]string, listed []writer) {
	t.Helper()
	var of [2]string
	for _, e := range n.Elts {
		kv := e.(*ast.KeyValueExpr)
		if at := slices.Index([]string{"Owner", "Kind"}, fmt.Sprint(kv.Key)); at >= 0 {
			var text strings.Builder
			_ = format.Node(&text, s.fset, kv.Value)
			of[at] = text.String()
		}
	}
	key := of[0] + " of " + of[1]
	if at := owners[key]; at != "" {
		t.Errorf("%s: %s has another StatusWriter at %s", s.at(n), key, at)
	}
	owners[key] = s.at(n)
	kind, literal := strings.CutPrefix(of[1], `"`)
	kind = strings.TrimSuffix(kind, `"`)
	if !slices.ContainsFunc(listed, func(w writer) bool {
		return "internal/kube/"+w.file == s.path && w.owner == names[of[0]] && (!literal || strings.Contains(w.objects, "`"+kind+"`"))
	}) {
		t.Errorf("%s: docs/architecture.md does not say that this file writes %s as %q", s.at(n), of[1], names[of[0]])
	}
}

// constants are the texts of the constants in a directory and below.
func constants(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.dir()+"/", dir+"/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 && len(v.Values) == 1 {
				if text, ok := literal(v.Values[0]); ok {
					all[v.Names[0].Name] = text
				}
			}
			return true
		})
	}
	return all
}

// literal is a text that is written out, in parts or not.
func literal(x ast.Expr) (string, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			text, err := strconv.Unquote(x.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		left, ok1 := literal(x.X)
		right, ok2 := literal(x.Y)
		return left + right, ok1 && ok2
	}
	return "", false
}
