package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
)

// A server keeps records as a provider does. It takes no TTL below 120 s, and no record below no.example.org.
type server struct {
	*httptest.Server
	t       *testing.T
	records map[string]endpoint
	applied int
}

func newServer(t *testing.T, records ...endpoint) *server {
	s := &server{t: t, records: map[string]endpoint{}}
	for _, e := range records {
		s.records[key(e.DNSName, e.RecordType)+e.SetIdentifier] = e
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, map[string][]string{"include": {"example.org", ""}, "exclude": {"secret.example.org"}})
	})
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, r *http.Request) {
		all := []endpoint{}
		for _, e := range s.records {
			all = append(all, e)
		}
		s.answer(w, r, all)
	})
	mux.HandleFunc("POST /adjustendpoints", func(w http.ResponseWriter, r *http.Request) {
		var in, out []endpoint
		s.read(r, &in)
		for _, e := range in {
			if strings.HasSuffix(e.DNSName, "no.example.org") {
				continue
			}
			if e.RecordTTL != 0 {
				e.RecordTTL = max(e.RecordTTL, 120)
			}
			e.ProviderSpecific = []property{{"proxied", "true"}}
			out = append(out, e)
		}
		s.answer(w, r, out)
	})
	mux.HandleFunc("POST /records", func(w http.ResponseWriter, r *http.Request) {
		var c changes
		s.read(r, &c)
		s.apply(c)
		w.WriteHeader(http.StatusNoContent)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *server) answer(w http.ResponseWriter, r *http.Request, v any) {
	if r.Header.Get("Accept") != mediaType {
		s.t.Errorf("%s %s: Accept is %q", r.Method, r.URL, r.Header.Get("Accept"))
	}
	w.Header().Set("Content-Type", mediaType)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *server) read(r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil || r.Header.Get("Content-Type") != mediaType {
		s.t.Errorf("%s %s: %v, Content-Type %q", r.Method, r.URL, err, r.Header.Get("Content-Type"))
	}
}

// apply is as strict as a provider's API: a record to create must not exist, others must be as they were.
func (s *server) apply(c changes) {
	s.applied++
	if len(c.UpdateOld) != len(c.UpdateNew) {
		s.t.Errorf("%d old and %d new records", len(c.UpdateOld), len(c.UpdateNew))
	}
	for _, e := range slices.Concat(c.UpdateOld, c.Delete) {
		have, ok := s.records[key(e.DNSName, e.RecordType)+e.SetIdentifier]
		if !ok || !slices.Equal(have.Targets, e.Targets) || have.RecordTTL != e.RecordTTL {
			s.t.Errorf("%+v is to be changed, and is %+v", e, have)
		}
		delete(s.records, key(e.DNSName, e.RecordType)+e.SetIdentifier)
	}
	for _, e := range slices.Concat(c.UpdateNew, c.Create) {
		if _, ok := s.records[key(e.DNSName, e.RecordType)]; ok {
			s.t.Errorf("%+v exists", e)
		}
		s.records[key(e.DNSName, e.RecordType)] = e
	}
}

func (s *server) text() string {
	var lines []string
	for _, e := range s.records {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %d %s %s%v", e.DNSName, e.RecordType, e.RecordTTL, strings.Join(e.Targets, ","), e.SetIdentifier, e.ProviderSpecific)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// pass makes one pass with wants NAME TYPE VALUES [TTL].
func pass(t *testing.T, c *Client, lines ...string) plan.Plan {
	t.Helper()
	cfg := plan.Config{Registry: plan.Registry{Owner: "me"}, Policy: plan.Sync, TTL: 300, RemoveUnlisted: true}
	in := plan.Input{Names: len(lines)}
	for _, line := range lines {
		var ttl uint32
		f := strings.Fields(line + " 0")
		_, _ = fmt.Sscan(f[3], &ttl)
		in.Wants = append(in.Wants, plan.Want{Set: plan.Set{Name: f[0], Type: f[1], TTL: ttl, Values: strings.Split(f[2], ",")}, By: names.Ref{Kind: "Service", Namespace: "prod", Name: "web"}})
	}
	var err error
	if in.Wants, err = c.Adjust(t.Context(), in.Wants); err != nil {
		t.Fatal(err)
	}
	if in.Existing, err = c.Records(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Domains = []plan.Filter{c.Domain()}
	p := plan.New(cfg, in)
	if len(p.Changes) > 0 {
		if made, lost, err := c.Apply(t.Context(), p.Changes); err != nil || made != len(p.Changes) || len(lost) > 0 {
			t.Fatal(made, lost, err)
		}
	}
	return p
}

func client(t *testing.T, url string) *Client {
	t.Helper()
	c, err := New(url)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const owner = `"heritage=external-dns,external-dns/owner=me,external-dns/resource=service/prod/web"`

// TestSync: records come, change and go with their owners in the provider's form, and those of others stay.
func TestSync(t *testing.T) {
	s := newServer(t,
		endpoint{DNSName: "manual.example.org", RecordType: "A", Targets: []string{"192.0.2.7"}, RecordTTL: 60},
		endpoint{DNSName: "weighted.example.org", RecordType: "A", Targets: []string{"192.0.2.7"}, SetIdentifier: "one"},
		endpoint{DNSName: "a-weighted.example.org", RecordType: "TXT", Targets: []string{owner}},
		endpoint{DNSName: "www.secret.example.org", RecordType: "A", Targets: []string{"192.0.2.7"}},
		endpoint{DNSName: "a-www.secret.example.org", RecordType: "TXT", Targets: []string{owner}})
	before := s.text()
	c := client(t, s.URL)
	wants := []string{"www.example.org A 192.0.2.2,192.0.2.1 60", "www.example.org AAAA 2001:db8::1", "alias.example.org CNAME lb.example.com", "x.no.example.org A 192.0.2.1",
		"manual.example.org A 192.0.2.1", "weighted.example.org A 192.0.2.1", "www.example.com A 192.0.2.1", "www.secret.example.org A 192.0.2.1"}
	p := pass(t, c, wants...)
	if len(p.Changes) != 3 || len(p.Skipped) != 2 {
		t.Errorf("%+v", p)
	}
	if got := strings.Join(slices.DeleteFunc(strings.Split(s.text(), "\n"), func(line string) bool { return strings.Contains(before, line) }), "\n"); got != `a-www.example.org TXT 120 `+owner+` []
aaaa-www.example.org TXT 300 `+owner+` []
alias.example.org CNAME 300 lb.example.com [{proxied true}]
cname-alias.example.org TXT 300 `+owner+` []
www.example.org A 120 192.0.2.2,192.0.2.1 [{proxied true}]
www.example.org AAAA 300 2001:db8::1 [{proxied true}]` {
		t.Errorf("got:\n%s", got)
	}
	if again := pass(t, c, wants...); len(again.Changes) > 0 || s.applied != 1 {
		t.Errorf("a second pass changes %v", again.Changes)
	}
	pass(t, c, "www.example.org A 192.0.2.9", "alias.example.org A 192.0.2.9")
	if got := s.text(); !strings.Contains(got, "www.example.org A 120 192.0.2.9 [{proxied true}]") || strings.Contains(got, "CNAME") || strings.Contains(got, "AAAA") {
		t.Errorf("got:\n%s", got)
	}
	pass(t, c)
	if got := s.text(); got != before {
		t.Errorf("got:\n%s\nwant:\n%s", got, before)
	}
}

// TestAnswers: a server that is no webhook, fails, or answers without end gives an error with advice.
func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"another type": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "[is it a webhook of ExternalDNS?]"},
		"failure":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }, "500 Internal Server Error [its log says why]"},
		"redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(302)
		}, "302 Found"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			fmt.Fprint(w, "<")
		}, "invalid character"},
		"bad regex": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			fmt.Fprint(w, `{"regexInclude":"("}`)
		}, "missing closing"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			for range MaxBody/4096 + 2 {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, "more than"},
	} {
		s := httptest.NewServer(test.answer)
		_, err := client(t, s.URL).Records(t.Context())
		s.Close()
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("localhost:8888"); err == nil {
		t.Error("a URL without a scheme is accepted")
	}
}
