package plan

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/dns/names"
)

var update = flag.Bool("update", false, "write the plans into testdata")

// TestPlan: each file of testdata has settings, wants, records, and the plan. The plan is carried out: a second plan
// changes nothing, and no record of others is gone.
func TestPlan(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i+3 <= len(a.Files); i += 4 {
				got := scenario(t, string(a.Files[i].Data), string(a.Files[i+1].Data), string(a.Files[i+2].Data))
				if *update {
					a.Files = slices.Replace(a.Files, i+3, min(i+4, len(a.Files)), txtar.File{Name: "plan", Data: []byte(got)})
				} else if len(a.Files) < i+4 || got != string(a.Files[i+3].Data) {
					t.Errorf("%s: got:\n%s", a.Files[i].Name, got)
				}
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func scenario(t *testing.T, settings, wants, records string) string {
	t.Helper()
	cfg, in := Config{Registry: Registry{Owner: "me"}, Policy: Sync, TTL: 300}, Input{Zones: []string{"example.org"}, Listed: map[string]bool{"service": true, "ingress": true}}
	for one := range strings.FieldsSeq(settings) {
		key, value, _ := strings.Cut(one, "=")
		switch key {
		case "policy":
			cfg.Policy = value
		case "prefix":
			cfg.Prefix = value
		case "suffix":
			cfg.Suffix = value
		case "wildcard":
			cfg.Wildcard = value
		case "domain":
			cfg.Domains = append(cfg.Domains, Filter{Include: strings.Split(value, ",")})
		case "zones":
			in.Zones = strings.Split(value, ",")
		case "unlisted":
			in.Listed[value] = false
		case "remove-unlisted":
			cfg.RemoveUnlisted = true
		default:
			t.Fatalf("unknown setting %q", key)
		}
	}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(wants) {
		f := strings.Fields(line)
		namespace, name, _ := strings.Cut(f[1], "/")
		ttl, _ := strconv.Atoi(strings.Join(f[5:], ""))
		in.Wants = append(in.Wants, Want{Set{f[2], f[3], uint32(ttl), strings.Split(f[4], ",")}, names.Ref{Kind: f[0], Namespace: namespace, Name: name}})
	}
	for line := range strings.Lines(records) {
		f := strings.Fields(line)
		ttl, _ := strconv.Atoi(f[1])
		s := Set{Name: f[0], Type: f[2], TTL: uint32(ttl), Values: strings.Split(f[3], ";")}
		if s.Type != typeTXT {
			s.Values = strings.Split(f[3], ",")
		}
		in.Existing = append(in.Existing, s)
	}
	in.Names = len(in.Wants)
	p := New(cfg, in)
	var b strings.Builder
	for _, c := range p.Changes {
		fmt.Fprintf(&b, "%v\n", c)
		if !slices.Equal(c.OldTXT.Values, c.NewTXT.Values) {
			fmt.Fprintf(&b, "  %s %q -> %q\n", c.NewTXT.Name, c.OldTXT.Values, c.NewTXT.Values)
		}
	}
	for _, s := range p.Skipped {
		fmt.Fprintf(&b, "%v\n", s)
	}
	for _, s := range p.Held {
		fmt.Fprintf(&b, "held %v\n", s)
	}
	fmt.Fprintf(&b, "owned %d, foreign %d\n", p.Owned, p.Foreign)
	carryOut(t, cfg, in, p)
	return b.String()
}

// carryOut applies a plan, and plans again.
func carryOut(t *testing.T, cfg Config, in Input, p Plan) {
	t.Helper()
	slices.Reverse(in.Wants)
	slices.Reverse(in.Existing)
	if again := New(cfg, in); fmt.Sprint(again) != fmt.Sprint(p) {
		t.Errorf("the order of wants and records makes another plan:\n%v\n%v", again, p)
	}
	touched, last := map[string]bool{}, Change{}
	for _, c := range p.Changes {
		o, ok := ownerOf(c.OldTXT)
		if c.Action != Create && (!ok || o.owner != cfg.Owner) {
			t.Errorf("%v is not ours", c)
		}
		if c.Action == Delete && last.Action != Delete && last.Set().Name == c.Set().Name {
			t.Errorf("%v comes after %v: a server adds nothing next to a CNAME record", c, last)
		}
		last = c
		for _, s := range []Set{c.Set(), c.NewTXT} {
			touched[s.Name+" "+s.Type] = true
		}
	}
	in.Existing = slices.DeleteFunc(slices.Clone(in.Existing), func(s Set) bool { return touched[s.Name+" "+s.Type] })
	for _, c := range p.Changes {
		for _, s := range []Set{c.New, c.NewTXT} {
			if s.exists() {
				in.Existing = append(in.Existing, s)
			}
		}
	}
	if again := New(cfg, in); len(again.Changes) > 0 || len(again.Held) != len(p.Held) {
		t.Errorf("a second plan:\n%v", again.Changes)
	}
}

// TestRegistry: names of TXT records as ExternalDNS makes them, and settings that cannot be used.
func TestRegistry(t *testing.T) {
	for _, test := range []struct{ prefix, suffix, wildcard, name, kind, want string }{
		{"", "", "", "www.example.org", "A", "a-www.example.org"},
		{"", "", "", "www.example.org", "CNAME", "cname-www.example.org"},
		{"own.", "", "", "www.example.org", "AAAA", "own.aaaa-www.example.org"},
		{"", "-own", "", "www.example.org", "A", "a-www-own.example.org"},
		{"x%{record_type}-", "", "", "www.example.org", "AAAA", "xaaaa-www.example.org"},
		{"", "-%{record_type}", "", "www.example.org", "A", "www-a.example.org"},
		{"", "", "any", "*.example.org", "A", "a-any.example.org"},
		{"", "", "", "*.example.org", "A", "a-*.example.org"},
		{"%{record_type}-owner.", "", "", "example.org", "A", "a-owner.example.org"},
	} {
		r := Registry{Owner: "me", Prefix: test.prefix, Suffix: test.suffix, Wildcard: test.wildcard}
		if got := r.TXTName(test.name, test.kind); got != test.want || r.Check() != nil {
			t.Errorf("%+v: %s, %v", test, got, r.Check())
		}
	}
	for _, r := range []Registry{{}, {Owner: "a,b"}, {Owner: `a"`}, {Owner: "me", Prefix: "a", Suffix: "b"}, {Owner: "me", Prefix: "%{record_type}"}, {Owner: "me", Suffix: "%{record_type}"}} {
		if r.Check() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

// FuzzOwnership: only a text with ExternalDNS's heritage and our ID is ours, and our own text always is.
func FuzzOwnership(f *testing.F) {
	f.Add("heritage=external-dns,external-dns/owner=me,external-dns/resource=service/a/b")
	f.Add(`"heritage=external-dns,external-dns/owner=me"`)
	f.Add("heritage=other,external-dns/owner=me,heritage=external-dns")
	f.Fuzz(func(t *testing.T, text string) {
		if o, ok := parseOwnership(text); ok && (o.owner == "" || !strings.Contains(text, "heritage="+heritage)) {
			t.Errorf("%q is of %+v", text, o)
		}
	})
}
