package dns

import (
	"encoding/pem"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

var update = flag.Bool("update", false, "write the reports of testdata anew")

// TestDefaultCorefiles starts with the unchanged Corefiles of distributions, in a pod's place: at
// CoreDNS's paths, with a service account and a resolv.conf whose server cannot be reached.
func TestDefaultCorefiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 6 {
		t.Fatalf("testdata has %v: %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			if !alone(t) {
				return
			}
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			api := inPod(t, a)
			fill(api)
			r := serve(t, Config{})
			for line := range strings.Lines(section(a, "questions")) {
				f := strings.Fields(line)
				m, err := ask("udp", 53, f[0], dns.StringToType[f[1]])
				if want := strings.Join(f[2:], " "); err != nil {
					t.Errorf("%s: %v", f[0], err)
				} else if got := answer(m); got != want {
					t.Errorf("%s %s: got %q, want %q", f[0], f[1], got, want)
				}
			}
			if log := r.log.String(); strings.Contains(log, "level=ERROR") || !strings.Contains(log, "corefile="+AdoptedCorefile) {
				t.Errorf("log:\n%s", log)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestReports compares what --check says of the same Corefiles.
func TestReports(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			if !alone(t) {
				return
			}
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			inPod(t, a)
			var got strings.Builder
			report := Check(Config{}, AdoptedCorefile, []byte(section(a, "etc/coredns/Corefile")))
			if _, err := report.WriteTo(&got); err != nil {
				t.Fatal(err)
			}
			if len(report.Errors) > 0 {
				t.Errorf("it cannot be served: %v", report.Errors)
			}
			if *update {
				for i := range a.Files {
					if a.Files[i].Name == "report" {
						a.Files[i].Data = []byte(got.String())
					}
				}
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want := section(a, "report"); got.String() != want {
				t.Errorf("got:\n%swant:\n%s", got.String(), want)
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

// inPod gives this process, which has a mount namespace of its own, the files of an archive below
// /etc, a resolv.conf, and the service account of a pod.
func inPod(t *testing.T, a *txtar.Archive) *apiServer {
	t.Helper()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/etc", "/run"} {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	api := newAPIServerTLS(t)
	files := map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\n"}
	for _, f := range a.Files {
		if strings.HasPrefix(f.Name, "etc/") {
			files["/"+f.Name] = string(f.Data)
		}
	}
	const account = "/run/secrets/kubernetes.io/serviceaccount/"
	files[account+"token"] = "token"
	files[account+"ca.crt"] = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.cert}))
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		rewrite(t, path, "%s", text)
	}
	u, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	return api
}

// TestWhatCheckRefuses: every plugin that is missing is named, and what a plugin refuses, with its line.
func TestWhatCheckRefuses(t *testing.T) {
	if !alone(t) {
		return
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if r := Check(Config{}, "Corefile", []byte(". {\n kubernetes cluster.local\n forward . 192.0.2.1\n}\n")); len(r.Errors) > 0 {
		t.Errorf("outside of a cluster: %v", r.Errors)
	}
	for _, c := range []struct{ text, want string }{
		{".:53 {\n errors\n route53 a:b\n forward . 192.0.2.1\n}\nx.example {\n dnssec\n etcd {\n  path /x\n }\n}\n",
			"Corefile:3: plugin \"route53\" is not built in|Corefile:7: plugin \"dnssec\" is not built in|Corefile:8: plugin \"etcd\" is not built in"},
		{". {\n cache 30 {\n  bla\n }\n}\n", "Corefile:3 - "},
		{". {\n kubernetes cluster.local {\n  pods sometimes\n }\n}\n", "Corefile:2: plugin/kubernetes: wrong value for pods"},
		{". {\n forwrd . 192.0.2.1\n}\n", "Corefile:2: plugin \"forwrd\" is not built in [did you mean forward?]"},
		{". {\n cache\n", "Unexpected token"},
		{"", "no server block"},
		{". {\n cache\n}\n. {\n cache\n}\n", "two server blocks have the zone"},
		{". {\n hosts {\n  ttl x\n }\n}\n", "Corefile:2: plugin/hosts"},
	} {
		r := Check(Config{}, "Corefile", []byte(c.text))
		text := strings.Join(r.Errors, "|")
		if len(r.Errors) == 0 || !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
			t.Errorf("%q: got %q, want %q", c.text, text, c.want)
		}
	}
}

// TestKubeDNSConfigMap: stub domains and upstreams in kube-dns's own format, which come and go.
func TestKubeDNSConfigMap(t *testing.T) {
	dir := t.TempDir()
	s := New(Config{ResolvConf: filepath.Join(dir, "none")})
	s.kubeDNS = dir
	if text, err := s.Corefile(); err != nil || strings.Contains(text, "forward") {
		t.Fatalf("without the ConfigMap: %v\n%s", err, text)
	}
	rewrite(t, filepath.Join(dir, "stubDomains"), "%s", `{"acme.local": ["192.0.2.1", "2001:db8::1"], "b.example": ["192.0.2.2:5353"]}`)
	rewrite(t, filepath.Join(dir, "upstreamNameservers"), "%s", `["192.0.2.3"]`)
	in, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"acme.local:53 {", "forward . 192.0.2.1 2001:db8::1 {", "b.example:53 {", "forward . 192.0.2.2:5353 {", "forward . 192.0.2.3 {", "    loop\n",
	} {
		if !strings.Contains(string(in.Contents), want) {
			t.Errorf("want %q:\n%s", want, in.Contents)
		}
	}
	for _, bad := range []string{`{"a": []}`, `{"a {": ["192.0.2.1"]}`, `{"cluster.local": ["192.0.2.1"]}`, `{"a": ["ns.example"]}`, `[]`, `{`} {
		rewrite(t, filepath.Join(dir, "stubDomains"), "%s", bad)
		if _, err := s.read(); err == nil || !strings.Contains(err.Error(), "ConfigMap kube-dns") {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

// TestOwnCorefileGoesFirst: of the default paths the ConfigMap fairway-dns has precedence, and what
// is another program's is left alone where flags say what to serve.
func TestOwnCorefileGoesFirst(t *testing.T) {
	dir := t.TempDir()
	own, adopted := filepath.Join(dir, "own"), filepath.Join(dir, "adopted")
	load := func(cfg Config) (input, error) {
		cfg.ResolvConf = filepath.Join(dir, "none")
		s := New(cfg)
		s.paths, s.adopted = []string{own, adopted}, adopted
		return s.load()
	}
	for _, step := range []struct {
		write, domain, want, note string
	}{
		{"", "", "built-in", "no such file"},
		{adopted, "", adopted, ""},
		{"", "k8s.example", "built-in", "is not taken over: flags say"},
		{own, "", own, ""},
	} {
		if step.write != "" {
			rewrite(t, step.write, ". {\n cache\n}\n")
		}
		in, err := load(Config{ClusterDomain: step.domain})
		if err != nil || in.Filepath != step.want || !strings.Contains(in.note+" no such file", step.note) {
			t.Errorf("%+v: got %q, note %q, %v", step, in.Filepath, in.note, err)
		}
	}
	if _, err := load(Config{ClusterDomain: "k8s.example"}); err == nil || !strings.Contains(err.Error(), "says itself") {
		t.Errorf("our own beside flags: %v", err)
	}
}

func TestFailuresAreCounted(t *testing.T) {
	log := &testnet.Log{}
	f := newFailures(slog.New(slog.NewTextHandler(log, nil)), time.Hour)
	l := lines{slog.New(slog.NewTextHandler(log, nil)), f}
	for i := range 100 {
		fmt.Fprintf(l, "[ERROR] plugin/errors: 2 n%d.example. A: read udp 10.0.0.1:%d->192.0.2.1:53: i/o timeout\n", i, 1000+i)
	}
	fmt.Fprintln(l, "[ERROR] plugin/errors: 2 x.example. AAAA: read udp 10.0.0.1:9->192.0.2.1:53: read: connection refused")
	fmt.Fprintln(l, "[ERROR] plugin/errors: 2 4611686018427387904.123456789. HINFO: read udp 10.0.0.1:9->192.0.2.1:53: i/o timeout")
	fmt.Fprintln(l, "[ERROR] plugin/errors: 5 errors like 'x' occurred in last 5m0s")
	for i := range 2 * failureReasons {
		fmt.Fprintf(l, "[ERROR] plugin/errors: 2 x.example. A: reason %c\n", 'a'+i)
	}
	got := log.String()
	for want, n := range map[string]int{"n0.example": 1, "n1.example": 0, "connection refused": 1, "HINFO": 0, "5 errors like": 1, "reason ": failureReasons - 2 + 1} {
		if c := strings.Count(got, want); c != n {
			t.Errorf("%d lines with %q, want %d:\n%s", c, want, n, got)
		}
	}
	f.close()
	rest := strings.TrimPrefix(log.String(), got)
	if !strings.Contains(rest, `reason="i/o timeout" count=99 in=1h0m0s last="2 n99.example.`) || strings.Contains(rest, "refused") {
		t.Errorf("at the end:\n%s", rest)
	}
	if len(f.reasons) != 0 {
		t.Errorf("%d periods are left", len(f.reasons))
	}
}

// TestFailedReload: a Corefile that a plugin refuses, and one with an unknown plugin, are each said
// once, and a metric says that what is served is old, until what is served is what is written.
func TestFailedReload(t *testing.T) {
	if !alone(t) {
		return
	}
	const text = ".:5306 {\n errors\n prometheus 127.0.0.1:9153\n reload 2s 0s\n template IN A {\n  answer \"{{ .Name }} 1 IN A 192.0.2.%d\"\n }\n %s\n}\n"
	path := corefile(t, text, 1, "")
	r := serve(t, Config{Corefile: path})
	says := func(address, stale string) func() error {
		return func() error {
			m, err := ask("udp", 5306, "example.org.", dns.TypeA)
			if err != nil {
				return err
			}
			metrics, err := get("http://127.0.0.1:9153/metrics")
			if err != nil {
				return err
			}
			if got := answer(m); got != "NOERROR A "+address || !strings.Contains(metrics, "\nfairway_dns_corefile_stale "+stale+"\n") {
				return fmt.Errorf("got %q; stale is not %s", got, stale)
			}
			return nil
		}
	}
	eventually(t, "the first", says("192.0.2.1", "0"))
	for bad, want := range map[string]string{"cache 30 {\n  bla\n }": "after 'bla'", "route53": "is not built in"} {
		rewrite(t, path, text, 2, bad)
		eventually(t, "a line in the log", func() error { return r.log.Has(want) })
		eventually(t, "the metric", says("192.0.2.1", "1"))
	}
	rewrite(t, path, text, 1, "")
	eventually(t, "the first, as it is written", says("192.0.2.1", "0"))
	rewrite(t, path, text, 3, "")
	eventually(t, "the third", says("192.0.2.3", "0"))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	log := r.log.String()
	if n := strings.Count(log, "level=ERROR"); n != 2 {
		t.Errorf("%d lines at level ERROR, want 2:\n%s", n, log)
	}
}

// TestDocsCheck holds the report in docs/dns.md, and its list of plugins.
func TestDocsCheck(t *testing.T) {
	if !alone(t) {
		return
	}
	const text = ".:53 {\n errors\n health\n ready\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  pods insecure\n }\n" +
		" route53 example.com.:Z1\n forward . /etc/resolv.conf\n reload\n}\ncorp.example:53 {\n forward . 192.0.2.53 192.0.2.54\n}\n"
	var got strings.Builder
	if _, err := Check(Config{}, "Corefile", []byte(text)).WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/dns.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "$ fairway dns --check Corefile\n" + got.String() + "```\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/dns.md does not have:\n%s", want)
	}
	names := strings.Join(slices.Sorted(slices.Values(Plugins())), ", ")
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), "Built in are: "+names+"; and `import`.") {
		t.Errorf("docs/dns.md does not list the plugins: %s", names)
	}
}
