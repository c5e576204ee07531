package dns

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestUserCorefileIsServedOverBothTransports(t *testing.T) {
	up, queries := upstream(t, "192.0.2.7")
	r := serve(t, Config{Port: 5300, Corefile: corefile(t, ". {\n errors\n cache 30\n forward . %s\n}\n", up)})
	for _, network := range []string{"udp", "tcp", "udp"} {
		m, err := ask(network, 5300, "example.org.", dns.TypeA)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		if got := answer(m); got != "NOERROR A 192.0.2.7" {
			t.Errorf("%s: got %q", network, got)
		}
	}
	if n := queries(); n != 1 {
		t.Errorf("the upstream was asked %d times, want 1: the rest is cached", n)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	noneLeft(t)
	if ln, err := net.Listen("tcp", ":5300"); err != nil {
		t.Errorf("the port is not free after Run: %v", err)
	} else {
		ln.Close()
	}
}

func TestCorefileIsReloaded(t *testing.T) {
	first, _ := upstream(t, "192.0.2.1")
	second, _ := upstream(t, "192.0.2.2")
	const text = ".:5301 {\n errors\n forward . %s\n reload 2s 0s\n %s\n}\n"
	path := corefile(t, text, first, "")
	r := serve(t, Config{Corefile: path})
	says := func(want string) func() error {
		return func() error {
			m, err := ask("udp", 5301, "example.org.", dns.TypeA)
			if err != nil {
				return err
			}
			if got := answer(m); got != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		}
	}
	if err := says("NOERROR A 192.0.2.1")(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, path, text, second, "")
	eventually(t, "the second upstream to answer", says("NOERROR A 192.0.2.2"))

	// A mistake is logged once, and what was served before is still served.
	rewrite(t, path, text, first, "route53")
	eventually(t, "the mistake to be logged", func() error { return r.log.Has(`plugin \"route53\" is not built in`) })
	if err := says("NOERROR A 192.0.2.2")(); err != nil {
		t.Errorf("after a reload that failed: %v", err)
	}

	// And after the mistake is mended, the server still looks at the file.
	rewrite(t, path, text, first, "")
	eventually(t, "the first upstream to answer", says("NOERROR A 192.0.2.1"))
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	noneLeft(t)
}

// TestEndAtOnce: a server that is told to end when it has just begun ends, with its sockets.
func TestEndAtOnce(t *testing.T) {
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	path := corefile(t, ".:5307 {\n errors\n template IN A\n}\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		done := make(chan error, 1)
		go func() { done <- New(Config{Corefile: path}).Run(ctx) }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(60 * time.Second):
			t.Fatal("it does not end")
		}
	}
	noneLeft(t)
}

func TestLameDuckStillAnswers(t *testing.T) {
	up, _ := upstream(t, "192.0.2.7")
	r := serve(t, Config{Port: 5302, Corefile: corefile(t, ". {\n health 127.0.0.1:8080 {\n lameduck 1s\n }\n forward . %s\n}\n", up)})
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	eventually(t, "the lame duck time", func() error { return r.log.Has("lameduck mode for 1s") })
	m, err := ask("udp", 5302, "example.org.", dns.TypeA)
	if err != nil {
		t.Fatalf("in lame duck time: %v", err)
	}
	if got := answer(m); got != "NOERROR A 192.0.2.7" {
		t.Errorf("in lame duck time: got %q", got)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	noneLeft(t)
}

func TestWhatCannotBeServedIsRefused(t *testing.T) {
	testnet.NeedRoot(t, "opens the ports of a DNS server")
	taken, err := net.ListenPacket("udp", "127.0.0.1:5310")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	web, err := net.Listen("tcp", "127.0.0.1:8099")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	in := func(text string) Config { return Config{Port: 5311, Corefile: corefile(t, "%s", text)} }
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"unknown plugin", in(".:5311 {\n errors\n route53\n}\n"), `:3: plugin "route53" is not built in [built in are: acl autopath bufsize`},
		{"not closed", in(". {\n cache\n"), "Unexpected token"},
		{"empty", in("# nothing\n"), "has no server block"},
		{"wrong option", in(". {\n cache 30 {\n  bla\n }\n}\n"), "plugin/cache"},
		{"zone twice", in(". {\n cache\n}\n. {\n cache\n}\n"), "already defined"},
		{"no such file", Config{Corefile: "/nonexistent/Corefile"}, "no such file"},
		{"UDP port in use", Config{Port: 5310, Corefile: corefile(t, ". {\n cache\n}\n")}, "listen on UDP port 5310: address already in use [another DNS server"},
		{"health port in use", in(". {\n errors\n health 127.0.0.1:8099 {\n lameduck 20s\n }\n kubernetes {\n endpoint http://127.0.0.1:1\n startup_timeout 100ms\n }\n}\n"), "address already in use"},
		{"not in a cluster", Config{Port: 5311}, "[outside a cluster, give --kubeconfig or --master]"},
		{"no kubeconfig", Config{Port: 5311, Kubeconfig: "/nonexistent/config"}, "[check the kubeconfig file /nonexistent/config]"},
		{"two servers", Config{Kubeconfig: "/a", Master: "http://b"}, "give one"},
		{"flags beside a Corefile", Config{Master: "http://b", Corefile: corefile(t, ". {\n cache\n}\n")}, "says itself which cluster"},
		{"injection", Config{Port: 5311, ClusterDomain: "a {\n}\n"}, "cannot be written"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // should it start after all, it ends at once
			err := New(c.cfg).Run(ctx)
			if err == nil {
				t.Fatal("it was served")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line with %q", err, c.want)
			}
			noneLeft(t)
		})
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	up, _ := upstream(t, "192.0.2.7")
	path := corefile(t, ". {\n forward . %s\n}\n", up)
	serve(t, Config{Port: 5303, Corefile: path})
	err := New(Config{Port: 5304, Corefile: path}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another DNS server runs in this process") {
		t.Errorf("got %v", err)
	}
	if _, err := ask("udp", 5303, "example.org.", dns.TypeA); err != nil {
		t.Errorf("the first was disturbed: %v", err)
	}
}

// The built-in Corefile listens for queries, health, readiness and metrics.
func TestBuiltInCorefileListens(t *testing.T) {
	if !alone(t) {
		return
	}
	api := newAPIServer(t)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	rewrite(t, resolv, "nameserver 127.0.0.1\n")
	r := serve(t, Config{Master: api.URL, ResolvConf: resolv})
	if err := r.log.Has("names outside the cluster are not answered"); err != nil {
		t.Error(err)
	}
	for url, want := range map[string]string{
		"http://127.0.0.1:8080/health":  "OK",
		"http://127.0.0.1:8181/ready":   "OK",
		"http://127.0.0.1:9153/metrics": "coredns_build_info",
	} {
		eventually(t, url, func() error {
			body, err := get(url)
			if err == nil && !strings.Contains(body, want) {
				err = fmt.Errorf("%.80q", body)
			}
			return err
		})
	}
	// There is no upstream to ask, so the answer is quick: no forward, no timeout.
	m, err := ask("udp", 53, "example.org.", dns.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	if m.Rcode != dns.RcodeServerFailure {
		t.Errorf("a name outside: got %s", answer(m))
	}
}

// get and getBy return the body of a page.
func get(url string) (string, error) { return getBy(http.DefaultClient, url) }

func getBy(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.80q", resp.Status, body)
	}
	return string(body), err
}

func TestLogLine(t *testing.T) {
	for _, c := range []struct {
		in     string
		level  slog.Level
		plugin string
		text   string
	}{
		{"[INFO] plugin/reload: Running\n", slog.LevelInfo, "reload", "Running"},
		{"[WARNING] plugin/kubernetes: a: b\n", slog.LevelWarn, "kubernetes", "a: b"},
		{"[ERROR] Restart failed: x\n", slog.LevelError, "", "Restart failed: x"},
		{"anything", slog.LevelInfo, "", "anything"},
	} {
		level, plugin, text := parseLine(c.in)
		if level != c.level || plugin != c.plugin || text != c.text {
			t.Errorf("%q: got %v %q %q", c.in, level, plugin, text)
		}
	}
}
