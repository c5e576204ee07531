package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

// A handTable is a Table written by hand: rules by host and prefix of the path.
type handTable struct {
	ports      []gateway.Port
	rules      []handRule
	listener   *gateway.Listener
	handshakes map[string]gateway.Handshake
	streams    map[uint16]gateway.Stream
}

type handRule struct {
	host, prefix string
	rule         *gateway.Rule
	captures     []string
}

func (h *handTable) Ports() []gateway.Port { return h.ports }

func (h *handTable) Lookup(_ uint16, r gateway.Request) gateway.Decision {
	if h.handshakes != nil && r.ServerName() != "" && r.ServerName() != r.Host() {
		return gateway.Decision{Outcome: gateway.Misdirected, Listener: h.listener}
	}
	for _, one := range h.rules {
		if (one.host == "" || one.host == r.Host()) && strings.HasPrefix(r.Path(), one.prefix) {
			return gateway.Decision{Listener: h.listener, Rule: one.rule, Prefix: len(strings.TrimSuffix(one.prefix, "/")), Captures: one.captures}
		}
	}
	return gateway.Decision{Outcome: gateway.NoRoute, Listener: h.listener}
}

func (h *handTable) Handshake(_ uint16, name string) (gateway.Handshake, bool) {
	s, ok := h.handshakes[name]
	return s, ok
}

func (h *handTable) Stream(port uint16, _ api.Proto) (gateway.Stream, bool) {
	s, ok := h.streams[port]
	return s, ok
}

// A bench is a running server with backends, all on loopback.
type bench struct {
	testing.TB
	srv       *Server
	port      uint16
	table     *handTable
	endpoints Endpoints
	log       *lockedBuffer
	stop      func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// freePort returns a port of loopback that nobody has. It is below the ports that the kernel gives to clients, so no
// connection takes it in the meantime.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12_000+rand.IntN(18_000)))
		if err == nil {
			defer l.Close()
			return uint16(l.Addr().(*net.TCPAddr).Port)
		}
	}
	t.Fatal("no port is free")
	return 0
}

// start runs a server without rules.
func start(t testing.TB, c Config) *bench {
	t.Helper()
	b := &bench{TB: t, port: freePort(t), endpoints: Endpoints{}, log: &lockedBuffer{}}
	b.table = &handTable{
		ports:    []gateway.Port{{Number: b.port, Proto: api.TCP, HTTP: true}},
		listener: &gateway.Listener{Name: "web", Port: b.port},
	}
	c.Address = netip.MustParseAddr("127.0.0.1")
	c.AllowLoopback = true
	c.Log = slog.New(slog.NewTextHandler(b.log, nil))
	srv, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	b.srv = srv
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	var once sync.Once
	b.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("Run does not end")
			}
		})
	}
	t.Cleanup(b.stop)
	return b
}

// rule adds a rule for a prefix of the path, and applies the table.
func (b *bench) rule(prefix string, rule *gateway.Rule) *gateway.Rule {
	b.Helper()
	rule.Route = gateway.Ref{Kind: gateway.KindHTTPRoute, Name: api.Name{Namespace: "shop", Name: "cart"}}
	b.table.rules = append([]handRule{{prefix: prefix, rule: rule}}, b.table.rules...)
	b.apply()
	return rule
}

func (b *bench) apply() {
	b.Helper()
	t, e := *b.table, Endpoints{}
	t.rules = slices.Clone(t.rules) // the server may still use the table when a test changes its own
	for k, v := range b.endpoints {
		e[k] = v
	}
	if err := b.srv.Apply(&t, e); err != nil {
		b.Fatal(err)
	}
}

// backend returns a Backend with endpoints at these addresses.
func (b *bench) backend(name string, at ...string) gateway.Backend {
	b.Helper()
	key := api.PortName{Name: api.Name{Namespace: "shop", Name: name}, Port: "http"}
	var all []service.Endpoint
	for _, a := range at {
		all = append(all, service.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	b.endpoints[key] = all
	return gateway.Backend{Service: key, Port: 80, Weight: 1}
}

// echo is a backend that answers with what it got: the request line, the headers and the body.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	body, err := io.ReadAll(r.Body)
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	_ = r.Header.WriteSubset(&s, map[string]bool{"Accept-Encoding": true})
	fmt.Fprintf(&s, "\n%s", body)
	if err != nil {
		fmt.Fprintf(&s, "error: %v", err)
	}
	_, _ = io.WriteString(w, s.String())
}

// serveHTTP runs a backend, and returns its address.
func serveHTTP(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// raw sends bytes and returns all that comes back until the server closes, or nothing came for a while.
func (b *bench) raw(text string) string {
	b.Helper()
	c := b.dial()
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		b.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(1500 * time.Millisecond))
	got, _ := io.ReadAll(c)
	return string(got)
}

func (b *bench) dial() net.Conn {
	b.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// client returns a client of one version of HTTP.
func (b *bench) client(version int) *http.Client {
	t := &http.Transport{Protocols: &http.Protocols{}, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	if version == 2 {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	b.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// ask sends a request as text, by HTTP/1.1 or HTTP/2, and returns the answer as text: status, headers, body. Date and
// lengths are left out.
func (b *bench) ask(version int, request string) string {
	b.Helper()
	head, body, _ := strings.Cut(request, "\n\n")
	text := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n"
	if !strings.Contains(head, "\nHost:") {
		text = strings.Replace(text, "\r\n", "\r\nHost: shop.example\r\n", 1)
	}
	if body != "" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text + "\r\n" + body)))
	if err != nil {
		b.Fatal(err)
	}
	req.RequestURI = ""
	req.URL.Scheme, req.URL.Host = "http", fmt.Sprintf("127.0.0.1:%d", b.port)
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil
	}
	resp, err := b.client(version).Do(req)
	if err != nil {
		return "error: " + err.Error()
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	var s strings.Builder
	fmt.Fprintf(&s, "%d\n", resp.StatusCode)
	_ = resp.Header.WriteSubset(&s, map[string]bool{"Date": true, "Content-Length": true})
	fmt.Fprintf(&s, "\n%s", got)
	if err != nil {
		fmt.Fprintf(&s, "error: %v", err)
	}
	return strings.ReplaceAll(strings.ReplaceAll(s.String(), "\r\n", "\n"), "\r", "")
}

// bothEngines runs a test with each version of HTTP.
func bothEngines(t *testing.T, f func(t *testing.T, version int)) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP%d", version), func(t *testing.T) { f(t, version) })
	}
}

var _ atomic.Int32
