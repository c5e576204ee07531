package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// serveH2C runs a backend that speaks HTTP/2 without TLS.
func serveH2C(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestUpgradeOnlyWebSocket: h2c and other upgrades are not passed on, because what follows would evade the rules.
func TestUpgradeOnlyWebSocket(t *testing.T) {
	b := start(t, Config{})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	for _, protocol := range []string{"h2c", "h2c, websocket", "TLS/1.0"} {
		got := b.raw("GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: " + protocol + "\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200 ") || strings.Contains(got, "Upgrade") || strings.Contains(got, "Http2-Settings") {
			t.Errorf("%s:\n%s", protocol, got)
		}
	}
}

// TestWebSocket: after 101 bytes go both ways, also those that were sent with the request.
func TestWebSocket(t *testing.T) {
	b := start(t, Config{})
	at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			http.Error(w, "no upgrade", 400)
			return
		}
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello ")
		_, _ = io.Copy(c, rw)
	})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("chat", at)}})
	c := b.dial()
	_, _ = io.WriteString(c, "GET /chat HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: x\r\n\r\nearly")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	got := make([]byte, len("hello early"))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "hello early" {
		t.Fatalf("%q, %v", got, err)
	}
	_, _ = io.WriteString(c, "more")
	if _, err := io.ReadFull(r, got[:4]); err != nil || string(got[:4]) != "more" {
		t.Fatalf("%q, %v", got, err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Fatalf("%q, %v", rest, err)
	}
}

// TestConnectionsAreKept: many clients at a time do not open a connection to the endpoint for each request.
func TestConnectionsAreKept(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		var opened atomic.Int32
		s := httptest.NewUnstartedServer(http.HandlerFunc(echo))
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		s.Start()
		t.Cleanup(s.Close)
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", strings.TrimPrefix(s.URL, "http://"))}})
		const clients = 20
		for range 5 {
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() { b.ask(version, "GET / HTTP/1.1") })
			}
			wg.Wait()
		}
		if n := opened.Load(); n > 2*clients { // a client may ask again before its connection to the endpoint is back in the pool
			t.Errorf("%d connections for %d clients", n, clients)
		}
	})
}

// TestNoCompression: the gateway neither asks for compressed answers nor unpacks them.
func TestNoCompression(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprintf(w, "asked for %q", r.Header.Get("Accept-Encoding"))
		}))}})
		if got := b.ask(version, "GET / HTTP/1.1"); !strings.Contains(got, `asked for ""`) || !strings.Contains(got, "Content-Encoding: gzip") {
			t.Error(got)
		}
	})
}

// TestGRPC: a stream in both directions with trailers, to a backend that speaks HTTP/2.
func TestGRPC(t *testing.T) {
	b := start(t, Config{})
	at := serveH2C(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_ = http.NewResponseController(w).Flush()
		line := bufio.NewScanner(r.Body)
		for line.Scan() {
			fmt.Fprintf(w, "got %s te %s\n", line.Text(), r.Header.Get("Te"))
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	})
	back := b.backend("greeter", at)
	back.Protocol = gateway.H2C
	b.rule("/", &gateway.Rule{GRPC: true, Backends: []gateway.Backend{back}})
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", fmt.Sprintf("http://127.0.0.1:%d/greeter/Hello", b.port), pr)
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := b.client(2).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for i := range 3 {
		fmt.Fprintf(pw, "%d\n", i)
		if got, err := r.ReadString('\n'); err != nil || got != fmt.Sprintf("got %d te trailers\n", i) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	pw.Close()
	if _, err := io.Copy(io.Discard, r); err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("trailers %v, %v", resp.Trailer, err)
	}
	// The gateway's own answers are statuses of gRPC.
	b.endpoints = Endpoints{}
	b.apply()
	if got := b.ask(2, "POST /greeter/Hello HTTP/1.1\nContent-Type: application/grpc\n\nx"); !strings.HasPrefix(got, "200\n") || !strings.Contains(got, "Grpc-Status: 14\n") {
		t.Error(got)
	}
}

// TestHTTP1ToHTTP2: a client of HTTP/1.1 reaches a backend that speaks HTTP/2 only.
func TestHTTP1ToHTTP2(t *testing.T) {
	b := start(t, Config{})
	back := b.backend("greeter", serveH2C(t, echo))
	back.Protocol = gateway.H2C
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{back}})
	for _, request := range []string{
		"POST /a?b=c HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
		"POST /a?b=c HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		if got := b.raw(request); !strings.Contains(got, "POST /a?b=c\nHost: shop.example") || !strings.Contains(got, "hello") {
			t.Error(got)
		}
	}
}

// TestOneFormOfPath: the backend sees the path that was matched, in its one form. Doubtful paths are refused by both engines.
func TestOneFormOfPath(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
		b.rule("/admin", &gateway.Rule{})
		for path, want := range map[string]string{
			"/a/b": "200 /a/b", "/a//b": "200 /a/b", "/x/../a": "200 /a", "/%61": "200 /a", "/a%c3%a9?q=%2F": "200 /a%C3%A9?q=%2F",
			"/x/%2e%2e/admin": "500 ", "//admin": "500 ", "/a%2Fb": "400 ", "/a%5cb": "400 ", "/a%00": "400 ", "/a%zz": "400 ", "/%2e%2e/%2e%2e/admin/x": "500 ",
		} {
			if path == "/a%zz" && version == 2 {
				continue // net/http resets the stream
			}
			var got string
			if version == 1 {
				answer := b.raw("GET " + path + " HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
				_, status, _ := strings.Cut(answer, " ")
				got = status[:4]
				if _, body, _ := strings.Cut(answer, "\r\n\r\n"); got == "200 " {
					got += body
				}
			} else {
				req, _ := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d/", b.port), nil)
				p, q, _ := strings.Cut(path, "?")
				req.URL.Opaque, req.URL.RawQuery = p, q
				if strings.HasPrefix(p, "//") {
					req.URL.Opaque, req.URL.Path = "", p
				}
				resp, err := b.client(2).Do(req)
				if err != nil {
					t.Fatal(path, err)
				}
				body, _ := io.ReadAll(resp.Body)
				got = fmt.Sprintf("%d ", resp.StatusCode)
				if resp.StatusCode == 200 {
					got += string(body)
				}
			}
			if got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
	})
}

// TestBodies: long and chunked bodies in both directions arrive whole, and a connection is used again after them.
func TestBodies(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if r.URL.Query().Get("length") != "" {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			_, _ = w.Write(body)
		})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
		client := b.client(version)
		for _, size := range []int{0, 1, 100, 4 << 10, 64 << 10, 64<<10 + 1, 3 << 20} {
			for _, chunked := range []bool{false, true} {
				for _, query := range []string{"", "?length=1"} {
					body := make([]byte, size)
					_, _ = rand.Read(body)
					var in io.Reader = bytes.NewReader(body)
					if chunked {
						in = struct{ io.Reader }{in}
					}
					resp, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/%s", b.port, query), "application/octet-stream", in)
					if err != nil {
						t.Fatal(size, chunked, query, err)
					}
					got, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || !bytes.Equal(got, body) {
						t.Fatalf("%d bytes, chunked %v, %q: %d bytes back, %v", size, chunked, query, len(got), err)
					}
				}
			}
		}
	})
}

// TestEventsAtOnce: a piece of a long answer reaches the client when the backend writes it.
func TestEventsAtOnce(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		next := make(chan bool)
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			for range 3 {
				_, _ = io.WriteString(w, "data: x\n")
				_ = http.NewResponseController(w).Flush()
				<-next
			}
		})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
		resp, err := b.client(version).Get(fmt.Sprintf("http://127.0.0.1:%d/", b.port))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		for range 3 {
			if line, err := r.ReadString('\n'); err != nil || line != "data: x\n" {
				t.Fatal(line, err)
			}
			next <- true
		}
	})
}

// TestOldClients: HTTP/1.0, Expect, pipelined requests, a target with host, HEAD.
func TestOldClients(t *testing.T) {
	b := start(t, Config{})
	at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			_ = http.NewResponseController(w).Flush()
		}
		echo(w, r)
	})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
	for name, test := range map[string]struct{ send, want, not string }{
		"HTTP/1.0":          {"GET /long HTTP/1.0\r\nHost: shop.example\r\n\r\n", "GET /long", "chunked"},
		"HTTP/1.0 no host":  {"GET / HTTP/1.0\r\n\r\n", "400", ""},
		"expect":            {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", "Expect"},
		"pipelined":         {"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /3", "404"},
		"absolute":          {"GET http://other.example/x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /x?y\nHost: other.example\n", ""},
		"HEAD":              {"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /\n", "HEAD /\n"},
		"CONNECT":           {"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "HTTP/1.1 405", ""},
		"asterisk":          {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400", ""},
		"empty line before": {"\r\nGET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /x", ""},
	} {
		got := b.raw(test.send)
		if !strings.Contains(got, test.want) || test.not != "" && strings.Contains(got, test.not) {
			t.Errorf("%s: want %q, not %q:\n%s", name, test.want, test.not, got)
		}
	}
}

// TestRetry: a request that no endpoint has seen goes to another one. A request that an endpoint may have seen is repeated only
// if its method is idempotent, and on another endpoint.
func TestRetry(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		refused := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		var seen atomic.Int32
		broken := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			seen.Add(1)
			_, _ = io.ReadAll(r.Body)
			panic(http.ErrAbortHandler)
		})
		well := serveHTTP(t, echo)
		b.rule("/refused", &gateway.Rule{Backends: []gateway.Backend{b.backend("a", refused, well)}})
		b.rule("/broken", &gateway.Rule{Backends: []gateway.Backend{b.backend("b", broken, well)}})
		for range 4 {
			if got := b.ask(version, "POST /refused HTTP/1.1\n\nhello"); !strings.HasPrefix(got, "200\n") || !strings.Contains(got, "hello") {
				t.Fatal(got)
			}
		}
		for range 4 {
			if got := b.ask(version, "PUT /broken HTTP/1.1\n\nhello"); !strings.HasPrefix(got, "200\n") || !strings.Contains(got, "hello") {
				t.Fatal(got)
			}
		}
		before := seen.Load()
		bad := 0
		for range 4 {
			if got := b.ask(version, "POST /broken HTTP/1.1\n\nhello"); strings.HasPrefix(got, "502\n") {
				bad++
			}
		}
		if n := int(seen.Load() - before); bad == 0 || bad != n {
			t.Errorf("%d requests reached the broken endpoint, %d clients were told", n, bad)
		}
	})
}

// TestKeptConnectionCloses: an endpoint that closes a kept connection costs no request.
func TestKeptConnectionCloses(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		closed := make(chan bool, 1)
		go func() { // answers one request of a connection, promises to keep it, and closes it
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
						_, _ = io.Copy(io.Discard, r.Body)
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					}
					c.Close()
					closed <- true
				}()
			}
		}()
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", l.Addr().String())}})
		for i := range 50 {
			request := []string{"GET / HTTP/1.1", "POST / HTTP/1.1\n\nbody"}[i%2]
			if got := b.ask(version, request); !strings.HasPrefix(got, "200\n") {
				t.Fatalf("request %d: %s", i, got)
			}
			<-closed
		}
	})
}

// TestTimeouts: connect, whole request and attempt have their bounds.
func TestTimeouts(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { <-ctx.Done() })
		t.Cleanup(cancel)
		b.rule("/request", &gateway.Rule{Timeout: 100 * time.Millisecond, Backends: []gateway.Backend{b.backend("a", at)}})
		b.rule("/attempt", &gateway.Rule{BackendTimeout: 100 * time.Millisecond, Backends: []gateway.Backend{b.backend("a", at)}})
		b.rule("/read", &gateway.Rule{ReadTimeout: 100 * time.Millisecond, ConnectTimeout: 100 * time.Millisecond, Backends: []gateway.Backend{b.backend("a", at)}})
		for _, path := range []string{"/request", "/attempt", "/read"} {
			began := time.Now()
			if got := b.ask(version, "GET "+path+" HTTP/1.1"); !strings.HasPrefix(got, "504\n") || time.Since(began) > 8*time.Second {
				t.Errorf("%s: %v after %v", path, got, time.Since(began))
			}
		}
	})
}
