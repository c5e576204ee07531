package names

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
	"github.com/fairway-net/fairway/internal/testing/nameserver"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestMain runs the tests in a network namespace of their own, which has nothing but a loopback interface.
func TestMain(m *testing.M) {
	const inside = "FAIRWAY_TEST_NAMES_NAMESPACE"
	if os.Getenv(inside) != "" {
		if lo, err := netlink.LinkByName("lo"); err != nil || netlink.LinkSetUp(lo) != nil {
			fmt.Fprintln(os.Stderr, "set lo up:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		testnet.Main(m)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	}
	fmt.Fprintln(os.Stderr, "run tests in a network namespace:", err)
	os.Exit(1)
}

// An api is an API server with Services, which answers streaming lists and keeps Leases and events.
type api struct {
	*httptest.Server
	mu       sync.Mutex
	services map[string]string // JSON by name
	lease    []byte
	encoding string // of the Lease: JSON or protobuf
	events   []string
	changed  chan struct{} // closed at the next change
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{services: map[string]string{}, changed: make(chan struct{})}
	mux := http.NewServeMux()
	for path, kind := range map[string][2]string{
		"/api/v1/services": {"Service", "v1"}, "/api/v1/nodes": {"Node", "v1"},
		"/apis/discovery.k8s.io/v1/endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"},
		"/apis/networking.k8s.io/v1/servicecidrs":  {"ServiceCIDR", "networking.k8s.io/v1"},
		"/apis/networking.k8s.io/v1/ingresses":     {"Ingress", "networking.k8s.io/v1"},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { a.stream(w, r, kind[0], kind[1]) })
	}
	mux.HandleFunc("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/", a.serveLease)
	mux.HandleFunc("POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases", a.serveLease)
	mux.HandleFunc("POST /apis/events.k8s.io/v1/namespaces/{namespace}/events", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.events = append(a.events, string(body))
		a.mu.Unlock()
		answer(w, http.StatusCreated, r.Header.Get("Content-Type"), body)
	})
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	t.Cleanup(a.CloseClientConnections)
	return a
}

func answer(w http.ResponseWriter, code int, encoding string, body []byte) {
	w.Header().Set("Content-Type", encoding)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

func (a *api) serveLease(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodGet {
		if a.lease == nil {
			answer(w, http.StatusNotFound, "application/json", []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		answer(w, http.StatusOK, a.encoding, a.lease)
		return
	}
	a.lease, _ = io.ReadAll(r.Body)
	a.encoding = r.Header.Get("Content-Type")
	answer(w, map[string]int{http.MethodPost: http.StatusCreated, http.MethodPut: http.StatusOK}[r.Method], a.encoding, a.lease)
}

// stream sends all objects of a kind, and then the Services' changes.
func (a *api) stream(w http.ResponseWriter, r *http.Request, kind, version string) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	sent, first := map[string]string{}, true
	for {
		a.mu.Lock()
		now, changed := map[string]string{}, a.changed
		if kind == "Service" {
			for name, text := range a.services {
				now[name] = text
			}
		}
		a.mu.Unlock()
		for name, text := range now {
			if sent[name] == "" {
				_ = enc.Encode(map[string]any{"type": "ADDED", "object": json.RawMessage(text)})
			} else if sent[name] != text {
				_ = enc.Encode(map[string]any{"type": "MODIFIED", "object": json.RawMessage(text)})
			}
		}
		for name, text := range sent {
			if now[name] == "" {
				_ = enc.Encode(map[string]any{"type": "DELETED", "object": json.RawMessage(text)})
			}
		}
		if sent = now; first {
			first = false
			_ = enc.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind, "apiVersion": version,
				"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{"k8s.io/initial-events-end": "true"}}}})
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// set makes a Service with a host name and an address; an empty address deletes it.
func (a *api) set(name, host, addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, name)
	if addr != "" {
		a.services[name] = fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":"prod","resourceVersion":"1","annotations":{"external-dns.alpha.kubernetes.io/hostname":%q}},
"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, name, host, addr)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// sync runs the command until it ends.
func (a *api) sync(ctx context.Context, t *testing.T, out io.Writer, args ...string) error {
	t.Helper()
	c := New(command.Env{Stdin: strings.NewReader(""), Stdout: out, Stderr: out, Version: "test"})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append([]string{"sync", "--master", a.URL, "--txt-owner-id", "me", "--identity", "test"}, args...))
	return c.ExecuteContext(ctx)
}

// primary starts a server of example.org, and returns the flags for it.
func primary(t *testing.T, kind string) []string {
	t.Helper()
	nameserver.Start(t, testnet.OpenNamespace(t, "self", "/proc/self/ns/net"), nameserver.Config{Kind: kind, Zones: []string{"example.org"}, Records: "manual A 192.0.2.7\n"})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(nameserver.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--rfc2136-host", "127.0.0.1", "--rfc2136-zone", "example.org", "--rfc2136-tsig-keyname", nameserver.KeyName, "--rfc2136-tsig-secret-file", secret}
}

func lookUp(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "dig", "+short", "+tries=1", "+time=2", "@127.0.0.1", name).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// TestOnce: a dry run prints the plan and changes nothing, and the run after it makes the changes.
func TestOnce(t *testing.T) {
	for _, kind := range nameserver.Kinds {
		t.Run(kind, func(t *testing.T) {
			a, flags := newAPI(t), append(primary(t, kind), "--once", "--policy", "sync")
			a.set("web", "www.example.org", "192.0.2.1")
			a.set("taken", "manual.example.org", "192.0.2.2")
			const want = `create www.example.org A 192.0.2.1: Service prod/web has the name
skip manual.example.org A 192.0.2.2: the name has a record A without an owner [remove the record, or choose another name]
1 to create, 0 to update, 0 to delete; 1 skipped, 0 held; 0 records are ours, 2 of others
`
			once := func(want string, more ...string) {
				t.Helper()
				var out bytes.Buffer
				if err := a.sync(t.Context(), t, &out, append(flags, more...)...); err != nil || out.String() != want {
					t.Errorf("%v\n%s", err, &out)
				}
			}
			once(want, "--dry-run")
			if got := lookUp(t, "www.example.org"); got != "" {
				t.Errorf("the dry run wrote %s", got)
			}
			once(want)
			if got := lookUp(t, "www.example.org"); got != "192.0.2.1" {
				t.Errorf("www has %q", got)
			}
			a.set("web", "", "")
			a.set("taken", "", "")
			once(`hold www.example.org A 192.0.2.1: no object has the name, but the cluster shows no name, or does not list this kind of object [--remove-unlisted removes it]
0 to create, 0 to update, 0 to delete; 0 skipped, 1 held; 1 records are ours, 2 of others
`)
			once(`delete www.example.org A 192.0.2.1: no object has the name; it was of service/prod/web
0 to create, 0 to update, 1 to delete; 0 skipped, 0 held; 1 records are ours, 2 of others
`, "--remove-unlisted")
			if got := lookUp(t, "www.example.org") + lookUp(t, "manual.example.org"); got != "192.0.2.7" {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// TestFollow: the running program follows changes of the cluster and of the server, tells owners by events, and removes
// nothing when the last name is gone.
func TestFollow(t *testing.T) {
	a, flags := newAPI(t), append(primary(t, "bind9"), "--policy", "sync", "--interval", "2s", "--min-event-sync-interval", "1s", "--metrics-bind-address", "127.0.0.1:9122")
	var log testnet.Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.sync(ctx, t, &log, flags...) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	await := func(name, want string) {
		t.Helper()
		got := ""
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if got = lookUp(t, name); got == want {
				return
			}
		}
		t.Fatalf("%s has %q, want %q", name, got, want)
	}
	a.set("web", "www.example.org", "192.0.2.1")
	a.set("taken", "manual.example.org", "192.0.2.2")
	await("www.example.org", "192.0.2.1")
	a.set("web", "www.example.org", "192.0.2.3")
	a.set("other", "other.example.org", "192.0.2.4")
	await("www.example.org", "192.0.2.3")
	await("other.example.org", "192.0.2.4")
	update := fmt.Sprintf("server 127.0.0.1\nkey %s:%s %s\nzone example.org\nupdate delete www.example.org A\nsend\n", nameserver.Algorithm, nameserver.KeyName, nameserver.Secret)
	cmd := exec.CommandContext(t.Context(), "nsupdate")
	if cmd.Stdin = strings.NewReader(update); cmd.Run() != nil {
		t.Fatal("nsupdate fails")
	}
	await("www.example.org", "192.0.2.3") // it comes back
	a.set("other", "", "")
	await("other.example.org", "")
	a.set("taken", "", "")
	a.set("web", "", "")
	if err := log.Await("1 records stay that no object has, as www.example.org A 192.0.2.3", 20*time.Second); err != nil {
		t.Error(err)
	}
	await("www.example.org", "192.0.2.3")
	a.mu.Lock()
	events := strings.Join(a.events, "\n")
	a.mu.Unlock()
	const want = "manual.example.org A is not written to the DNS server: the name has a record A without an owner [remove the record, or choose another name]"
	if len(a.events) != 1 || !strings.Contains(events, plan.ReasonNotWritten) || !strings.Contains(events, want) {
		t.Errorf("events:\n%s", events)
	}
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": "fairway_names_records{state=\"held\"} 1\n"} {
		r, err := http.Get("http://127.0.0.1:9122" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if !strings.Contains(string(body), want) {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// TestWebhook: the provider webhook gets the records with the TXT records of owners.
func TestWebhook(t *testing.T) {
	a := newAPI(t)
	a.set("web", "www.example.org", "192.0.2.1")
	var posted []string
	w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/external.dns.webhook+json;version=1")
		switch posted = append(posted, r.Method+" "+r.URL.Path); {
		case r.URL.Path == "/adjustendpoints":
			_, _ = w.Write(body)
		case r.Method == http.MethodPost:
			posted = append(posted, string(body))
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/records":
			fmt.Fprint(w, "[]")
		default:
			fmt.Fprint(w, "{}")
		}
	}))
	t.Cleanup(w.Close)
	var out bytes.Buffer
	if err := a.sync(t.Context(), t, &out, "--once", "--provider", "webhook", "--webhook-provider-url", w.URL); err != nil {
		t.Fatal(err)
	}
	const want = `GET /
POST /adjustendpoints
GET /records
POST /records
{"create":[{"dnsName":"www.example.org","targets":["192.0.2.1"],"recordType":"A","recordTTL":300},` +
		`{"dnsName":"a-www.example.org","targets":["\"heritage=external-dns,external-dns/owner=me,external-dns/resource=service/prod/web\""],"recordType":"TXT","recordTTL":300,"labels":{"ownedRecord":"www.example.org"}}]}`
	if got := strings.Join(posted, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestFlags: what is missing or wrong is an error with advice.
func TestFlags(t *testing.T) {
	a := newAPI(t)
	for args, want := range map[string]string{
		"":                                    "--rfc2136-host is missing",
		"--rfc2136-host a":                    "--rfc2136-zone is missing",
		"--rfc2136-host a --rfc2136-zone *.b": "[or give --rfc2136-insecure",
		"--rfc2136-host a --rfc2136-zone *.b --rfc2136-insecure":                        "is no zone",
		"--rfc2136-host a --rfc2136-zone b --rfc2136-insecure --rfc2136-tsig-keyname k": "exclude each other",
		"--policy create-only": "[choose sync or upsert-only]",
		"--provider aws":       "[choose one of rfc2136",
		"--source crd":         "[choose among service",
		"--txt-owner-id=":      "[give each cluster",
		"--default-ttl 0s":     "is not between",
		"--interval 0s":        "must be 1s or more",
		"--once --rfc2136-host 127.0.0.1 --rfc2136-zone b --rfc2136-tsig-keyname k --rfc2136-tsig-secret-file /none": "[--rfc2136-tsig-secret-file]",
	} {
		var out bytes.Buffer
		if err := a.sync(t.Context(), t, &out, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
