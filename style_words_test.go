package fairway

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logKeys are keys of log lines that have another name everywhere else.
var logKeys = map[string]string{"error": "err", "retryIn": "again", "retry": "again", "svc": "service", "addr": "address", "advice": "[advice] at the end of the message"}

// bareMessage is what is no message of a log: a text with an end of its own, or another form of what all say.
var bareMessage = []struct{ pattern, instead string }{
	{`[.!:]$`, "no mark at the end"},
	{`%|\n`, "attributes"},
	{`tr(y|ies|ied) again$`, "…, will try again"},
	{`^(Failed|failed|Error|Unable|unable|could not|can't|couldn't)\b`, "cannot …"},
	{`\banew\b|\btime and again\b|\bno longer is\b`, "again, repeatedly, is no longer"},
}

// TestLogWords: messages of logs have one form, and their keys one name in all programs.
func TestLogWords(t *testing.T) {
	level := []string{"Debug", "Info", "Warn", "Error"}
	key := regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	n := 0
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		ast.Inspect(s.file, func(node ast.Node) bool {
			c, ok := node.(*ast.CallExpr)
			if !ok || len(c.Args) == 0 {
				return true
			}
			f, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(level, f.Sel.Name) || !isLog(f.X) {
				return true
			}
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "slog" {
				t.Errorf("%s: slog.%s: use the logger that the caller gives; --log-format is unknown to this one", s.at(c), f.Sel.Name)
			}
			message, _ := literal(c.Args[0])
			if message == "" {
				return true
			}
			n++
			for _, b := range bareMessage {
				if regexp.MustCompile(b.pattern).MatchString(message) && !strings.HasSuffix(message, ", will try again") {
					t.Errorf("%s: the message %q: write %s", s.at(c), message, b.instead)
				}
			}
			for i := 1; i < len(c.Args); i += 2 {
				if k, ok := literal(c.Args[i]); ok && (!key.MatchString(k) || logKeys[k] != "") {
					t.Errorf("%s: the key %q: write %s", s.at(c), k, "camelCase, "+logKeys[k])
				}
			}
			return true
		})
	}
	if n < 150 {
		t.Errorf("only %d messages were found", n)
	}
}

// isLog reports whether an expression is a logger: log, cfg.Log, slog, With(…).
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "slog"
	case *ast.SelectorExpr:
		return x.Sel.Name == "log" || x.Sel.Name == "Log"
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && f.Sel.Name == "With" && isLog(f.X)
	}
	return false
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

// adviceInParentheses is what a user can do, where it is not found as a hint.
var adviceInParentheses = regexp.MustCompile(`%[wv] \([^%)]*[a-z]{2}`)

// TestAdvice: what to do about an error is in brackets at its end, where the programs find it for their line hint:.
func TestAdvice(t *testing.T) {
	n := 0
	for _, s := range sources(t) {
		if s.test() || strings.HasPrefix(s.path, "internal/scenario/") || strings.HasPrefix(s.path, "internal/datapath/conformance/") {
			continue
		}
		ast.Inspect(s.file, func(node ast.Node) bool {
			c, ok := node.(*ast.CallExpr)
			if !ok || len(c.Args) == 0 {
				return true
			}
			f, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "Errorf" && (f.Sel.Name != "New" || len(c.Args) != 1) {
				return true
			}
			text, ok := literal(c.Args[0])
			if !ok {
				return true
			}
			if strings.Contains(text, " [") {
				n++
			}
			switch {
			case adviceInParentheses.MatchString(text):
				t.Errorf("%s: %q: advice is in brackets, at the end", s.at(c), text)
			case strings.Contains(text, " [") && !strings.HasSuffix(text, "]") && !strings.Contains(text, "]%"):
				t.Errorf("%s: %q: advice is the end of an error", s.at(c), text)
			case regexp.MustCompile(`^[A-Z][a-z]|[.!]$`).MatchString(text) && !regexp.MustCompile(`^(ConfigMap|EndpointSlice|Pod|Service|Secret|IPAddressPool|BGPAdvertisement|BGPPeer|Corefile|Kubernetes)\b`).MatchString(text):
				t.Errorf("%s: %q: errors begin with a small letter, and have no mark at their end", s.at(c), text)
			}
			return true
		})
	}
	if n < 100 {
		t.Errorf("only %d errors with advice were found", n)
	}
}

// retiredNames are verbs and their forms that said nothing of what is done, each with what names in their place say.
var retiredNames = []struct{ pattern, instead string }{
	{`^(tell|told|said)$|^tell[A-Z]`, "what is done with it: log, report, notify, publish"},
	{`^(hear|heard)$|^(hear|heard)[A-Z]`, "receive, lastSeen, and what"},
	{`^(settle|settled|learn|place)$|^settle[A-Z]`, "what is decided: commit, reconcile, assign"},
	{`^(held|hold|holds|keep|keeps|kept)$`, "what it holds: advertised, granted, expected; what is retained: retainPorts"},
	{`^(own|mine|ours|others|everything|whole|nothing|somebody|nobody|anyone)$`, "whose: noteFullList, isOurs, foreign, changeAll"},
	{`^(say|says|saying|talk|ask[s]?ing|shun|shunned|staying|woken|untold)$`, "what is sent or read: serveConn, describeError, pendingRequest, drain"},
	{`^(more|most|odd|fresh|lately|sticky|learn|relearn|sweep|alone)$`, "what it counts or is: matches, limit, differs, affinity"},
}

// renamed are the packages without such names.
var renamed = []string{"bfd", "bgp", "cni", "command", "conntrack", "datapath", "edge", "election", "hostport", "ipam", "kube", "l2", "node", "policy", "proxy", "scenario", "speaker", "testnet"}

// TestRetiredNames: functions, types and fields have names that say what they do.
func TestRetiredNames(t *testing.T) {
	for _, s := range sources(t) {
		path, _ := strings.CutPrefix(s.dir(), "internal/")
		if name, _, _ := strings.Cut(path, "/"); s.test() || !slices.Contains(renamed, name) {
			continue
		}
		check := func(id *ast.Ident) {
			for _, r := range retiredNames {
				if regexp.MustCompile(r.pattern).MatchString(id.Name) {
					t.Errorf("%s: the name %s is retired: write %s", s.at(id), id.Name, r.instead)
				}
			}
		}
		ast.Inspect(s.file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncDecl:
				check(n.Name)
			case *ast.TypeSpec:
				check(n.Name)
			case *ast.StructType:
				for _, f := range n.Fields.List {
					for _, id := range f.Names {
						check(id)
					}
				}
			}
			return true
		})
	}
}
