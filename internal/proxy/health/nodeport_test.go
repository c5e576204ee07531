package health

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

var (
	web = api.Name{Namespace: "shop", Name: "web"}
	dns = api.Name{Namespace: "kube-system", Name: "dns"}
)

// checks is a NodePortChecks that runs until the test ends.
type checks struct {
	*NodePortChecks
	clock   *clock
	at      []netip.Prefix // addresses to listen on
	applied *applied
	stop    context.CancelFunc
	done    chan error

	mu       sync.Mutex
	problems []string
}

// startChecks starts checks on the addresses, or on all addresses if none are given.
func startChecks(t *testing.T, addrs ...string) *checks {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"0.0.0.0/0", "::/0"}
	}
	c := &checks{clock: &clock{t: time.Unix(1, 0)}, applied: &applied{wake: make(chan struct{}, 1)}, done: make(chan error, 1)}
	cfg := NodePortConfig{
		Log: slog.New(slog.DiscardHandler), State: newState(time.Minute, c.clock.now), Applied: c.applied,
		Problem: func(n api.Name, p api.Problem) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.problems = append(c.problems, fmt.Sprintf("%v %s: %s", n, p.Reason, p.Message))
		},
	}
	for _, a := range addrs {
		c.at = append(c.at, netip.MustParsePrefix(a))
	}
	c.NodePortChecks = NewNodePortChecks(cfg)
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() { c.done <- c.Run(ctx) }()
	t.Cleanup(func() { c.end(t) })
	return c
}

// sync calls Sync with the test's addresses.
func (c *checks) sync(all []Check) bool { return c.NodePortChecks.Sync(c.at, all) }

// applied is a table that the test sets.
type applied struct {
	table atomic.Pointer[service.Table]
	wake  chan struct{}
}

func (a *applied) Table() *service.Table      { return a.table.Load() }
func (a *applied) Subscribe() <-chan struct{} { return a.wake }

func (a *applied) publish(t *service.Table) {
	a.table.Store(t)
	a.wake <- struct{}{}
}

func (c *checks) end(t *testing.T) {
	t.Helper()
	c.stop()
	select {
	case err := <-c.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		c.done <- nil // for a second call
	case <-time.After(deadline):
		t.Fatal("Run did not end with its context")
	}
}

func (c *checks) reported() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.problems)
}

// freePort returns a port that is free now. The kernel gives it only to a program that asks for this port.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(20_000 + rand.IntN(10_000))
		if l, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func ask(t *testing.T, host string, port uint16, path string) (int, http.Header, string) {
	t.Helper()
	client := http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + net.JoinHostPort(host, fmt.Sprint(port)) + path)
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

func closed(t *testing.T, host string, port uint16) {
	t.Helper()
	if c, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(port))); err == nil {
		c.Close()
		t.Errorf("port %d of %s is open", port, host)
	}
}

// expect compares the whole answer with kube-proxy's (v1.37.1, service_health.go). dedent.Dedent there leaves the inner
// tabs, and no newline at either end.
func (c *checks) expect(t *testing.T, when string, name api.Name, port uint16, code, endpoints int, healthy bool) {
	t.Helper()
	want := "{\n\t\"service\": {\n\t\t\"namespace\": \"" + name.Namespace + "\",\n\t\t\"name\": \"" + name.Name +
		"\"\n\t},\n\t\"localEndpoints\": " + fmt.Sprint(endpoints) + ",\n\t\"serviceProxyHealthy\": " + fmt.Sprint(healthy) + "\n}"
	for _, path := range []string{"/", "/healthz", "/any/path?x=y"} {
		got, header, body := ask(t, "127.0.0.1", port, path)
		if got != code || body != want {
			t.Errorf("%s: %s answers %d %q\nwant %d %q", when, path, got, body, code, want)
		}
		for name, want := range map[string]string{
			"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
			"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(endpoints),
		} {
			if v := header.Get(name); v != want {
				t.Errorf("%s: %s is %q, want %q", when, name, v, want)
			}
		}
	}
}

func TestNodePortRules(t *testing.T) {
	c := startChecks(t)
	a, b := freePort(t), freePort(t)
	c.sync([]Check{checkOf(web, a, 2, 1), checkOf(dns, b, 0, 0)})
	c.expect(t, "two endpoints", web, a, 200, 2, true)
	c.expect(t, "no endpoint", dns, b, 503, 0, true)
	if code, _, _ := ask(t, "::1", a, "/"); code != 200 {
		t.Errorf("over IPv6: status %d, want 200", code)
	}

	c.sync([]Check{checkOf(web, a, 0, 0), checkOf(dns, b, 1, 0)})
	c.expect(t, "the last one terminates", web, a, 503, 0, true)
	c.expect(t, "one came", dns, b, 200, 1, true)

	c.cfg.State.Queued()
	c.clock.add(time.Minute)
	c.expect(t, "the agent is stuck", dns, b, 503, 1, false)
	c.cfg.State.Synced()
	c.expect(t, "the agent is well again", dns, b, 200, 1, true)

	c.sync([]Check{checkOf(dns, a, 3, 0)}) // with the port of another check
	c.expect(t, "port moved", dns, a, 200, 3, true)
	closed(t, "127.0.0.1", b)
	c.sync(nil)
	closed(t, "127.0.0.1", a)
	if p := c.reported(); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
}

func TestNodePortInUse(t *testing.T) {
	c := startChecks(t)
	taken, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a, b := netip.MustParseAddrPort(taken.Addr().String()).Port(), freePort(t)
	both := []Check{checkOf(web, a, 1, 0), checkOf(dns, b, 1, 0)}
	c.sync(both)
	c.sync(both)
	c.expect(t, "another's port is in use", dns, b, 200, 1, true)
	p := c.reported()
	if len(p) != 1 || !strings.HasPrefix(p[0], "shop/web FailedToStartServiceHealthcheck: ") ||
		!strings.Contains(p[0], fmt.Sprintf("port %d of 0.0.0.0 is in use", a)) || strings.Contains(p[0], "\n") {
		t.Errorf("problems %q, want one line about web", p)
	}
	taken.Close()
	c.sync(both)
	c.expect(t, "the port is free", web, a, 200, 1, true)
	if again := c.reported(); len(again) != 1 {
		t.Errorf("problems %q", again)
	}
}

func TestNodePortAddresses(t *testing.T) {
	for name, v := range map[string]struct {
		addrs        []string
		open, closed []string
	}{
		"everywhere":  {[]string{"::/0", "0.0.0.0/0"}, []string{"127.0.0.1", "::1"}, nil},
		"IPv4":        {[]string{"0.0.0.0/0"}, []string{"127.0.0.1", "127.0.0.2"}, []string{"::1"}},
		"IPv6":        {[]string{"::/0"}, []string{"::1"}, []string{"127.0.0.1"}},
		"one address": {[]string{"127.0.0.1/32"}, []string{"127.0.0.1"}, []string{"127.0.0.2", "::1"}},
		"mixed":       {[]string{"127.0.0.1/32", "::/0"}, []string{"127.0.0.1", "::1"}, []string{"127.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := startChecks(t, v.addrs...)
			port := freePort(t)
			c.sync([]Check{checkOf(web, port, 1, 1)})
			for _, host := range v.open {
				if code, _, _ := ask(t, host, port, "/"); code != 200 {
					t.Errorf("%s: status %d, want 200", host, code)
				}
			}
			for _, host := range v.closed {
				closed(t, host, port)
			}
			if p := c.reported(); len(p) > 0 {
				t.Errorf("problems: %q", p)
			}
		})
	}
	c := startChecks(t, "203.0.113.0/24")
	c.sync([]Check{checkOf(web, freePort(t), 1, 0)})
	if p := c.reported(); len(p) != 1 || !strings.Contains(p[0], "--nodeport-addresses") {
		t.Errorf("no address: problems %q", p)
	}
}

// TestNodePortClients: a silent client or a kept connection does not delay Sync, the closing of a port or the end.
func TestNodePortClients(t *testing.T) {
	c := startChecks(t)
	port := freePort(t)
	c.sync([]Check{checkOf(web, port, 1, 0)})
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	begin := time.Now()
	c.sync(nil)
	c.sync([]Check{checkOf(web, port, 1, 0)})
	if d := time.Since(begin); d > closeTimeout {
		t.Errorf("Sync took %v with a silent client", d)
	}
	c.expect(t, "opened again", web, port, 200, 1, true)
	dial()
	c.end(t)
	c.sync([]Check{checkOf(web, port, 1, 0)})
	closed(t, "127.0.0.1", port)
}

// TestNodePortServerLost: a port that stops accepting is opened again.
func TestNodePortServerLost(t *testing.T) {
	c := startChecks(t)
	port := freePort(t)
	c.sync([]Check{checkOf(web, port, 1, 0)})
	c.NodePortChecks.mu.Lock()
	for _, r := range c.open[web].servers {
		_ = r.listener.Close()
	}
	c.NodePortChecks.mu.Unlock()
	for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
		c.NodePortChecks.mu.Lock()
		n := len(c.open[web].servers)
		c.NodePortChecks.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the lost server is not forgotten")
		}
	}
	c.sync([]Check{checkOf(web, port, 2, 0)})
	c.expect(t, "opened again", web, port, 200, 2, true)
}

// TestNodePortApplied: Run opens and closes ports as the applied table says. It retries a port that was in use.
func TestNodePortApplied(t *testing.T) {
	c := startChecks(t)
	taken, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	settings := service.Settings{NodePorts: c.at}
	c.applied.publish(&service.Table{Settings: settings, HealthChecks: []Check{checkOf(web, port, 2, 0)}})
	until(t, "the port in use to be a problem", func() bool { return len(c.reported()) == 1 })
	taken.Close()
	until(t, "the port to be opened", func() bool {
		c.NodePortChecks.mu.Lock()
		defer c.NodePortChecks.mu.Unlock()
		return len(c.open[web].servers) == 1
	})
	c.expect(t, "opened at last", web, port, 200, 2, true)
	c.applied.publish(&service.Table{})
	until(t, "the port to be closed", func() bool {
		c.NodePortChecks.mu.Lock()
		defer c.NodePortChecks.mu.Unlock()
		return len(c.open) == 0
	})
	closed(t, "127.0.0.1", port)
}

// until polls cond.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", deadline, what)
		}
	}
}

// TestNoNodePortAddress: a node without a known address serves no NodePort, and answers no checks.
func TestNoNodePortAddress(t *testing.T) {
	c := startChecks(t)
	port := freePort(t)
	c.sync([]Check{checkOf(web, port, 1, 1)})
	c.expect(t, "at first", web, port, 200, 1, true)
	if !c.NodePortChecks.Sync(nil, []Check{checkOf(web, port, 1, 1)}) || len(c.reported()) > 0 {
		t.Errorf("nothing to open is a problem: %v", c.reported())
	}
	closed(t, "127.0.0.1", port)
	c.sync([]Check{checkOf(web, port, 1, 1)})
	c.expect(t, "again", web, port, 200, 1, true)
}

// TestFamilies: a request over IPv4 gets the number of IPv4 endpoints, and a request over IPv6 that of IPv6.
func TestFamilies(t *testing.T) {
	c := startChecks(t)
	port := freePort(t)
	c.sync([]Check{checkOf(web, port, 0, 3)})
	for at, want := range map[string]int{"127.0.0.1": http.StatusServiceUnavailable, "[::1]": http.StatusOK} {
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/", at, port))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("over %s: status %d, want %d", at, resp.StatusCode, want)
		}
	}
}

func checkOf(n api.Name, port uint16, endpoints4, endpoints6 int) Check {
	return Check{Service: n, Port: port, Endpoints4: endpoints4, Endpoints6: endpoints6}
}
