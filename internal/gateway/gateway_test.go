package gateway_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

var update = flag.Bool("update", false, "write the answers into the files of testdata")

// TestText compiles the objects of each file of testdata, in both orders of arrival, and asks for the fate of requests,
// handshakes and streams, and for the status of objects.
func TestText(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			x := parse(t, section(a, "objects"))
			forward, backward := compiled(x.objects), reversed(x.objects)
			for i := range a.Files {
				f := &a.Files[i]
				got := answer(t, x, forward, f.Name, string(f.Data))
				if again := answer(t, x, backward, f.Name, string(f.Data)); again != got {
					t.Errorf("the order of arrival changes %s:\n%s\nbackward:\n%s", f.Name, got, again)
				}
				if *update {
					f.Data = []byte(got)
				} else if got != string(f.Data) {
					t.Errorf("%s: got\n%s\nwant\n%s", f.Name, got, f.Data)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func compiled(objects []gateway.Object) *gateway.Compiler {
	c := gateway.NewCompiler(gateway.Settings{})
	for _, o := range objects {
		c.Set(o)
	}
	c.Table()
	return c
}

// reversed adds the objects one after the other in reverse, with a Table after each.
func reversed(objects []gateway.Object) *gateway.Compiler {
	c := gateway.NewCompiler(gateway.Settings{})
	for _, o := range slices.Backward(objects) {
		c.Set(o)
		c.Table()
	}
	return c
}

// answer returns a section with its answers after "=>".
func answer(t *testing.T, x *text, c *gateway.Compiler, name, src string) string {
	var out strings.Builder
	ask := map[string]func(string) string{
		"requests":   func(q string) string { return requestAnswer(t, x, c.Table(), q) },
		"handshakes": func(q string) string { return handshakeAnswer(x, c.Table(), q) },
		"streams":    func(q string) string { return streamAnswer(x, c.Table(), q) },
		"explain":    func(q string) string { return explainAnswer(t, x, c.Table(), q) },
	}[name]
	switch {
	case name == "reports":
		return reportAnswer(c)
	case name == "ports":
		return portsAnswer(c.Table())
	case name == "objects explained":
		var out strings.Builder
		for _, o := range x.objects {
			if k := o.Ref().Kind; k == gateway.KindHTTPRoute || k == gateway.KindGateway || k == gateway.KindIngress {
				fmt.Fprintln(&out, strings.Join(c.ExplainObject(o.Ref()), "\n\t"))
			}
		}
		return out.String()
	case name == "needs":
		return fmt.Sprintf("%v\n", c.Needs())
	case ask == nil:
		return src
	}
	for _, line := range strings.Split(strings.TrimRight(src, "\n"), "\n") {
		q, _, _ := strings.Cut(line, " =>")
		switch {
		case strings.HasPrefix(line, "\t"):
		case strings.TrimSpace(q) == "" || q[0] == '#':
			fmt.Fprintln(&out, line)
		default:
			fmt.Fprintf(&out, "%s => %s\n", q, ask(strings.TrimSpace(q)))
		}
	}
	return out.String()
}

func requestAnswer(t *testing.T, x *text, table *gateway.Table, q string) string {
	port, rest, _ := strings.Cut(q, " ")
	return decision(table.Lookup(x.port(port), parseRequest(t, rest)))
}

// decision writes a Decision as a person would.
func decision(d gateway.Decision) string {
	switch d.Outcome {
	case gateway.NoListener:
		return "404 no listener"
	case gateway.NoRoute:
		return "404 no route"
	case gateway.Misdirected:
		return "421"
	}
	r := d.Rule
	s := fmt.Sprintf("%s %s rule %d", r.Route.Kind, r.Route.Name, r.Index)
	if r.Name != "" {
		s += " " + r.Name
	}
	s += " " + backendsAnswer(r.Backends)
	if d.Prefix > 0 {
		s += fmt.Sprintf(" prefix=%d", d.Prefix)
	}
	if d.Captures != nil {
		s += fmt.Sprintf(" captures=%q", d.Captures)
	}
	return s + settings(r)
}

// settings writes what a rule has besides backends, as JSON of the fields that are set.
func settings(r *gateway.Rule) string {
	rest := *r
	rest.Route, rest.Name, rest.Index, rest.GRPC, rest.Backends = gateway.Ref{}, "", 0, false, nil
	data, err := json.Marshal(rest)
	if err != nil {
		return " " + err.Error()
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return " " + err.Error()
	}
	delete(fields, "Route")
	compact(fields)
	if len(fields) == 0 {
		return ""
	}
	data, _ = json.Marshal(fields)
	return " " + string(data)
}

// compact removes zero values.
func compact(fields map[string]any) {
	for k, v := range fields {
		switch v := v.(type) {
		case map[string]any:
			compact(v)
			if len(v) == 0 {
				delete(fields, k)
			}
		case []any:
			for _, e := range v {
				if m, ok := e.(map[string]any); ok {
					compact(m)
				}
			}
			if len(v) == 0 {
				delete(fields, k)
			}
		case nil:
			delete(fields, k)
		case string:
			if v == "" {
				delete(fields, k)
			}
		case float64:
			if v == 0 {
				delete(fields, k)
			}
		case bool:
			if !v {
				delete(fields, k)
			}
		}
	}
}

func backendsAnswer(all []gateway.Backend) string {
	var parts []string
	for _, b := range all {
		s := fmt.Sprintf("%s:%d", b.Service.Name, b.Port)
		if b.Service.Port != "" {
			s += "(" + b.Service.Port + ")"
		}
		if b.Refused != "" {
			s = "refused"
		}
		if b.Weight != 1 {
			s += fmt.Sprintf("*%d", b.Weight)
		}
		s += [...]string{"", " h2c", " ws"}[b.Protocol]
		if b.TLS != nil {
			s += " tls=" + b.TLS.ServerName
			if b.TLS.Certificate != nil {
				s += "+cert"
			}
			if b.TLS.Insecure {
				s += "+insecure"
			}
		}
		parts = append(parts, s)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func handshakeAnswer(x *text, table *gateway.Table, q string) string {
	port, sni, _ := strings.Cut(q, " ")
	h, ok := table.Handshake(x.port(port), sni)
	if !ok {
		return "refused"
	}
	s := "listener " + h.Listener.Name
	if h.Passthrough != nil {
		s += " passthrough " + backendsAnswer(h.Passthrough)
	}
	if h.Forward != nil {
		s += " forward " + backendsAnswer(h.Forward)
	}
	if len(h.Certificates) > 0 {
		s += fmt.Sprintf(" certificates=%d", len(h.Certificates))
	}
	if h.ClientCAs != nil {
		s += " asks clients"
	}
	if h.ClientAny {
		s += " lets all in"
	}
	return s
}

func streamAnswer(x *text, table *gateway.Table, q string) string {
	proto := api.TCP
	if strings.HasSuffix(q, "/UDP") {
		proto = api.UDP
	}
	s, ok := table.Stream(x.port(q), proto)
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", s.Route.Kind, s.Route.Name, backendsAnswer(s.Backends))
}

func portsAnswer(table *gateway.Table) string {
	var out strings.Builder
	for _, p := range table.Ports() {
		fmt.Fprintf(&out, "%d %s tls=%v http=%v %s external=%d\n", p.Number, p.Proto, p.TLS, p.HTTP, p.Owner.Name, p.External)
	}
	return out.String()
}

// reportAnswer writes all reports. A condition that is as it should be is its type alone.
func reportAnswer(c *gateway.Compiler) string {
	var out strings.Builder
	all := c.Reports()
	refs := slices.SortedFunc(maps.Keys(all), func(a, b gateway.Ref) int { return strings.Compare(refText(a), refText(b)) })
	for _, ref := range refs {
		r := all[ref]
		fmt.Fprintf(&out, "%s:%s", refText(ref), conditionText(r.Conditions))
		if r.Sets > 0 {
			fmt.Fprintf(&out, " sets=%d", r.Sets)
		}
		fmt.Fprintln(&out)
		for _, l := range r.Listeners {
			var kinds []string
			for _, k := range l.Kinds {
				kinds = append(kinds, k.Kind)
			}
			fmt.Fprintf(&out, "\tlistener %s [%s] attached=%d:%s\n", l.Name, strings.Join(kinds, " "), l.Attached, conditionText(l.Conditions))
		}
		for _, p := range r.Parents {
			parent := fmt.Sprintf("%s %s/%s", p.Parent.Kind, p.Parent.Namespace, p.Parent.Name)
			if p.Parent.Section != "" {
				parent += "/" + p.Parent.Section
			}
			fmt.Fprintf(&out, "\tparent %s:%s\n", parent, conditionText(p.Conditions))
		}
		for _, p := range r.Problems {
			fmt.Fprintf(&out, "\t%s: %s\n", p.Reason, p.Message)
		}
	}
	return out.String()
}

func refText(r gateway.Ref) string {
	return strings.TrimPrefix(fmt.Sprintf("%s %s", r.Kind, r.Name), " ")
}

func conditionText(all []gateway.Condition) string {
	var out strings.Builder
	for _, c := range all {
		switch {
		case c.Status && c.Reason == c.Type:
			fmt.Fprintf(&out, " %s", c.Type)
		case !c.Status && c.Type == "Conflicted":
		default:
			fmt.Fprintf(&out, " %s=%v/%s", c.Type, c.Status, c.Reason)
		}
	}
	return out.String()
}

func explainAnswer(t *testing.T, x *text, table *gateway.Table, q string) string {
	port, rest, _ := strings.Cut(q, " ")
	e := table.Explain(x.port(port), parseRequest(t, rest))
	out := e.Why
	for _, c := range e.Candidates {
		out += fmt.Sprintf("\n\t%s %s rule %d [%s] %s", c.Rule.Route.Kind, c.Rule.Route.Name, c.Rule.Index, c.Host, c.Match)
		if c.Lost != "" {
			out += ": " + c.Lost
		}
	}
	return out
}
