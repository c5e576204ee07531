package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

const deadline = 30 * time.Second

// clock is a time that the test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

type harness struct {
	clock    *clock
	state    *State
	server   *Server
	mu       sync.Mutex
	eligible bool
	stop     context.CancelFunc
	done     chan error
}

func (h *harness) setEligible(v bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = v
}

// start runs a Server on free ports until the test ends.
func start(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{clock: &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, eligible: true, done: make(chan error, 1)}
	h.state = newState(time.Minute, h.clock.now)
	any := netip.MustParseAddrPort("127.0.0.1:0")
	cfg := Config{
		Log: slog.New(slog.DiscardHandler), Healthz: any, Metrics: any, State: h.state,
		Families: []string{"IPv4", "IPv6"}, ProxyMode: "nftables", Registry: prometheus.NewRegistry(),
		Eligible: func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.eligible
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	h.server = New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() { h.done <- h.server.Run(ctx) }()
	t.Cleanup(func() { h.end(t) })
	want := map[string]bool{"healthz": cfg.Healthz.IsValid(), "metrics": cfg.Metrics.IsValid()}
	for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
		if (h.server.Addr("healthz") != nil) == want["healthz"] && (h.server.Addr("metrics") != nil) == want["metrics"] {
			return h
		}
		if time.Now().After(end) {
			t.Fatal("the server does not listen")
		}
	}
}

func (h *harness) end(t *testing.T) {
	t.Helper()
	h.stop()
	select {
	case err := <-h.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		h.done <- nil // for a second call
	case <-time.After(deadline):
		t.Fatal("Run did not end with its context")
	}
}

func (h *harness) get(t *testing.T, server, path string) (int, http.Header, string) {
	t.Helper()
	client := http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + h.server.Addr(server).String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// want is the expected answer to one path.
type want struct {
	code int
	body string
}

func (h *harness) check(t *testing.T, what string, healthz, livez want) {
	t.Helper()
	for path, w := range map[string]want{"/healthz": healthz, "/livez": livez} {
		code, header, body := h.get(t, "healthz", path)
		if code != w.code || body != w.body {
			t.Errorf("%s: %s answers %d %s\nwant %d %s", what, path, code, body, w.code, w.body)
		}
		if header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s has the headers %v", what, path, header)
		}
	}
}

// TestRules steps through a loop's states. The JSON is the answer of kube-proxy v1.37.
func TestRules(t *testing.T) {
	h := start(t)
	h.check(t, "before the first pass",
		want{200, `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":true,"healthy":true}`},
		want{200, `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","healthy":true}`})

	h.state.Queued()
	h.state.Synced()
	h.clock.add(24 * time.Hour)
	const fine = `"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}`
	h.check(t, "nothing changed for a day",
		want{200, `{"lastUpdated":"2026-01-03T03:04:05Z","currentTime":"2026-01-03T03:04:05Z","nodeEligible":true,` + fine + `}`},
		want{200, `{"lastUpdated":"2026-01-03T03:04:05Z","currentTime":"2026-01-03T03:04:05Z",` + fine + `}`})

	h.setEligible(false)
	h.check(t, "the node is about to be deleted",
		want{503, `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-03T03:04:05Z","nodeEligible":false,` + fine + `}`},
		want{200, `{"lastUpdated":"2026-01-03T03:04:05Z","currentTime":"2026-01-03T03:04:05Z",` + fine + `}`})
	h.setEligible(true)

	h.state.Queued()
	h.clock.add(59 * time.Second)
	h.state.Queued() // a later change does not make the first change younger
	if code, _, _ := h.get(t, "healthz", "/healthz"); code != 200 {
		t.Errorf("a change that waits for 59 s: status %d, want 200", code)
	}
	h.clock.add(time.Second)
	const sick = `"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":false}}`
	h.check(t, "a change waits for 60 s",
		want{503, `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-03T03:05:05Z","nodeEligible":true,"healthy":false,` + sick + `,"reason":"a change has waited for 1m0s to be written"}`},
		want{200, `{"lastUpdated":"2026-01-03T03:05:05Z","currentTime":"2026-01-03T03:05:05Z","healthy":true,` + sick + `}`})

	h.state.Synced()
	if code, _, _ := h.get(t, "healthz", "/healthz"); code != 200 {
		t.Errorf("after a success: status %d, want 200", code)
	}
}

// TestLivez: rules that cannot be written are no reason to restart the agent, but a hanging loop is.
func TestLivez(t *testing.T) {
	h := start(t)
	livez := func(what string, want int) {
		t.Helper()
		if code, _, body := h.get(t, "healthz", "/livez"); code != want {
			t.Errorf("%s: status %d %s, want %d", what, code, body, want)
		}
	}
	h.clock.add(time.Hour)
	livez("a loop that never began, as in mode none", 200)
	h.state.Queued()
	for range 1000 {
		h.state.Beat()
		h.clock.add(2 * time.Second)
	}
	livez("passes fail for half an hour", 200)
	h.state.Beat()
	h.clock.add(hangs - time.Second)
	livez("a long pass", 200)
	h.clock.add(time.Second)
	livez("the loop hangs", 503)
	h.state.Beat()
	livez("it turns again", 200)
}

func TestFirstPassNeverSucceeds(t *testing.T) {
	h := start(t)
	h.state.Queued()
	h.clock.add(time.Minute)
	if code, _, body := h.get(t, "healthz", "/healthz"); code != 503 {
		t.Errorf("status %d %s, want 503", code, body)
	}
}

func TestMetricsServer(t *testing.T) {
	h := start(t)
	h.get(t, "healthz", "/healthz")
	h.setEligible(false)
	h.get(t, "healthz", "/healthz")
	h.get(t, "healthz", "/livez")

	if code, header, body := h.get(t, "metrics", "/proxyMode"); code != 200 || body != "nftables" || header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("/proxyMode answers %d %q, %v", code, body, header)
	}
	if code, _, body := h.get(t, "metrics", "/healthz"); code != 200 || body != "ok" {
		t.Errorf("/healthz answers %d %q", code, body)
	}
	_, _, body := h.get(t, "metrics", "/metrics")
	for _, line := range []string{
		`kubeproxy_proxy_healthz_total{code="200"} 1`,
		`kubeproxy_proxy_healthz_total{code="503"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("/metrics lacks %q", line)
		}
	}
	if code, _, _ := h.get(t, "healthz", "/metrics"); code != 404 {
		t.Errorf("the health port shows metrics: status %d", code)
	}
}

func TestNothingListensUnconfigured(t *testing.T) {
	h := start(t, func(c *Config) { c.Healthz = netip.AddrPort{} })
	if a := h.server.Addr("healthz"); a != nil {
		t.Errorf("healthz listens on %v", a)
	}
	h.end(t)
	h = start(t, func(c *Config) { c.Healthz, c.Metrics = netip.AddrPort{}, netip.AddrPort{} })
	h.end(t)
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := New(Config{
		Log: slog.New(slog.DiscardHandler), State: NewState(time.Minute), Registry: prometheus.NewRegistry(),
		Healthz: netip.MustParseAddrPort("127.0.0.1:0"), Metrics: netip.MustParseAddrPort(taken.Addr().String()),
	})
	err = s.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "serve metrics: port ") || !strings.Contains(err.Error(), "--metrics-bind-address") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one line that names the port and the flag", err)
	}
	if c, err := net.Dial("tcp", s.Addr("healthz").String()); err == nil {
		c.Close()
		t.Error("the other server still listens")
	}
}

// TestPortComesFree: with Wait, the server waits for a port in use, such as the port of a kube-proxy that is being
// replaced.
func TestPortComesFree(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := netip.MustParseAddrPort(taken.Addr().String())
	s := New(Config{
		Log: slog.New(slog.DiscardHandler), State: NewState(time.Minute), Registry: prometheus.NewRegistry(),
		Healthz: netip.MustParseAddrPort("127.0.0.1:0"), Metrics: addr, Wait: true, ProxyMode: "ipvs", Version: "v1",
	})
	if err := s.Listen(t.Context()); err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	taken.Close()
	until(t, "an answer on the port that came free", func() bool {
		resp, err := http.Get("http://" + addr.String() + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(body), `fairway_info{mode="ipvs",version="v1"} 1`)
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestPortIsFreeAfterRun: an agent that is replaced must not keep the port from the next agent.
func TestPortIsFreeAfterRun(t *testing.T) {
	h := start(t)
	addr := h.server.Addr("healthz").String()
	// A silent client that stays connected must not delay the end.
	idle, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	h.end(t)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	l.Close()
}

// TestPortStaysInUse: with Wait, the server logs nothing while a predecessor ends. If the port stays in use, the log
// names the other process once. PortInUse is called until the port is free.
func TestPortStaysInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var log testnet.Log
	said := make(chan error, 10)
	s := New(Config{
		Log: slog.New(slog.NewTextHandler(&log, nil)), State: NewState(time.Minute), Registry: prometheus.NewRegistry(),
		Metrics: netip.MustParseAddrPort(taken.Addr().String()), Wait: true, patience: 10 * time.Millisecond,
		PortInUse: func(err error) { said <- err },
	})
	if err := s.Listen(t.Context()); err != nil || log.String() != "" {
		t.Errorf("Listen: %v; it said %s", err, log.String())
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	want := fmt.Sprintf("health.test (process %d) listens there", os.Getpid())
	if err := <-said; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("PortInUse got %v, want %q in it", err, want)
	}
	taken.Close()
	if err := <-said; err != nil {
		t.Errorf("PortInUse got %v, want nil: the port is free", err)
	}
	if n := strings.Count(log.String(), "cannot listen"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestReason: a 503 contains the reason, without the text of an error. A 200 is the same as kube-proxy's.
func TestReason(t *testing.T) {
	now := time.Now()
	state := newState(time.Minute, func() time.Time { return now })
	eligible := false
	s := New(Config{
		Log: slog.New(slog.DiscardHandler), State: state, Registry: prometheus.NewRegistry(), Families: []string{"IPv4"},
		Eligible: func() bool { return eligible }, NotEligible: func() string { return "waiting for the API server, which does not answer" },
		Status: func() any { return map[string]string{"node": "node-1"} },
	})
	ask := func(path string) string {
		w := httptest.NewRecorder()
		s.healthMux().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return fmt.Sprintf("%d %s", w.Code, w.Body)
	}
	check := func(path, want string, has bool) {
		t.Helper()
		if got := ask(path); strings.Contains(got, want) != has {
			t.Errorf("%s: %s; want %q in it: %v", path, got, want, has)
		}
	}
	check("/healthz", `503 {`, true)
	check("/healthz", `"reason":"waiting for the API server, which does not answer"`, true)
	eligible = true
	check("/healthz", `200 {`, true)
	check("/healthz", `reason`, false)
	state.Queued()
	state.Failed(errors.New("table secret"))
	now = now.Add(61 * time.Second)
	check("/healthz", `"reason":"the rules could not be written for 1m1s"`, true)
	check("/livez", `reason`, false)
	check("/statusz", `200 {"node":"node-1"}`, true)
	state.Synced()
	state.Queued()
	now = now.Add(2 * time.Minute)
	check("/healthz", `"reason":"a change has waited for 2m0s to be written"`, true)
}
