package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairway-net/fairway/internal/gateway"
)

// smuggling are requests whose end is doubtful.
var smuggling = map[string]string{
	"both lengths":            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"two equal lengths":       "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
	"two lengths":             "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\n",
	"a list of lengths":       "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
	"a signed length":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
	"a negative length":       "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
	"a hexadecimal length":    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\n",
	"an empty length":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
	"a huge length":           "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"space before the colon":  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"two codings":             "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"twice chunked":           "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"identity":                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
	"vertical tab":            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
	"xchunked":                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"chunked of HTTP/1.0":     "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
	"obs-fold":                "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 9\r\n\r\n",
	"obs-fold of a coding":    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	"a fold first":            "POST / HTTP/1.1\r\n Host: a\r\n\r\n",
	"bare LF":                 "GET / HTTP/1.1\nHost: a\n\n",
	"bare LF in the head":     "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
	"bare LF at the end":      "GET / HTTP/1.1\r\nHost: a\r\n\n",
	"bare CR":                 "GET / HTTP/1.1\r\nHost: a\r\nX: y\rContent-Length: 9\r\n\r\n",
	"NUL":                     "GET / HTTP/1.1\r\nHost: a\r\nX: y\x00\r\n\r\n",
	"no colon":                "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
	"no name":                 "GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n",
	"a space in a name":       "GET / HTTP/1.1\r\nHost: a\r\nContent Length: 9\r\n\r\n",
	"two hosts":               "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"no host":                 "GET / HTTP/1.1\r\nX: y\r\n\r\n",
	"a host with a path":      "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
	"a host with a user":      "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
	"a host with a bad port":  "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
	"a tab in the first line": "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"two spaces":              "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
	"four parts":              "GET / x HTTP/1.1\r\nHost: a\r\n\r\n",
	"HTTP/1.2":                "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
	"HTTP/0.9":                "GET /\r\n\r\n",
	"lower case version":      "GET / http/1.1\r\nHost: a\r\n\r\n",
	"a method with a colon":   "GE:T / HTTP/1.1\r\nHost: a\r\n\r\n",
	"a target without slash":  "GET x HTTP/1.1\r\nHost: a\r\n\r\n",
	"a fragment":              "GET /?a#b HTTP/1.1\r\nHost: a\r\n\r\n",
	"an unknown expectation":  "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 0\r\n\r\n",
}

// TestSmuggling: a request whose end is doubtful is refused, reaches no endpoint, and ends the connection: the request behind it
// gets no answer.
func TestSmuggling(t *testing.T) {
	b := start(t, Config{HeadTimeout: 300 * time.Millisecond})
	var seen atomic.Int32
	at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		echo(w, r)
	})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", at)}})
	const next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, request := range smuggling {
		got := b.raw(request + next)
		if !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 505") || strings.Contains(got, "smuggled") || strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "Connection: close") {
			t.Errorf("%s:\n%s", name, got)
		}
		if n := seen.Swap(0); n != 0 {
			t.Errorf("%s: the endpoint saw %d requests", name, n)
		}
	}
	for name, request := range map[string]string{
		"bare LF after a size": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n",
		"a chunk too long":     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhi\r\n0\r\n\r\n",
		"a signed size":        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nhi\r\n0\r\n\r\n",
		"a huge size":          "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi\r\n0\r\n\r\n",
	} {
		if got := b.raw(request + next); strings.HasPrefix(got, "HTTP/1.1 2") || strings.Contains(got, "smuggled") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// TestTrailersDoNotPass: a field of a request's trailer does not become a header of the request.
func TestTrailersDoNotPass(t *testing.T) {
	b := start(t, Config{})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Header, r.Trailer)
	}))}})
	got := b.raw("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Admin\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nX_Forwarded_For: 9.9.9.9\r\n\r\n2\r\nhi\r\n0\r\nX-Admin: true\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200") || strings.Contains(got, "X-Admin") || strings.Contains(got, "X-Secret") || strings.Contains(got, "9.9.9.9") {
		t.Error(got)
	}
}

// TestDowngrade: HTTP/2 has pseudo headers and lengths that HTTP/1.1 spells in the head. They cannot smuggle a request.
func TestDowngrade(t *testing.T) {
	b := start(t, Config{})
	var seen atomic.Int32
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	}))}})
	for name, fields := range map[string][][2]string{
		"a line break in a value":   {{":path", "/"}, {"x", "y\r\ncontent-length: 9"}},
		"a line break in a path":    {{":path", "/ HTTP/1.1\r\nX: y"}},
		"a space in a path":         {{":path", "/a b"}},
		"transfer-encoding":         {{":path", "/"}, {"transfer-encoding", "chunked"}},
		"connection":                {{":path", "/"}, {"connection", "x-forwarded-for"}},
		"a wrong length":            {{":path", "/"}, {"content-length", "9"}},
		"an authority with a path":  {{":path", "/"}, {":authority", "a/b"}},
		"two authorities":           {{":path", "/"}, {"host", "evil.example"}, {"host", "b"}},
		"a name in upper case":      {{":path", "/"}, {"X-Y", "z"}},
		"an encoded slash":          {{":path", "/a%2fb"}},
		"a target without slash":    {{":path", "a"}},
		"a line break in a method ": {{":path", "/"}, {":method", "GET / HTTP/1.1\r\nX: y\r\n\r\nPOST"}},
	} {
		status, _ := b.frames(fields, "")
		if strings.HasPrefix(status, "2") || seen.Swap(0) != 0 {
			t.Errorf("%s: %s", name, status)
		}
	}
	if got, _ := b.frames([][2]string{{":path", "/"}}, ""); got != "200" {
		t.Error(got)
	}
}

// TestHeadLimit: a head that is too long is refused by both engines.
func TestHeadLimit(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
		if got := b.ask(version, "GET / HTTP/1.1\nX-Long: "+strings.Repeat("a", 12<<10)); !strings.HasPrefix(got, "200") {
			t.Errorf("%.300s", got)
		}
		if got := b.ask(version, "GET / HTTP/1.1\nX-Long: "+strings.Repeat("a", 20<<10)); !strings.HasPrefix(got, "431") && !strings.HasPrefix(got, "error: ") {
			t.Errorf("%.300s", got)
		}
	})
}

// TestSlowClients: a client that sends its head byte by byte is cut off at HeadTimeout, whatever it sends.
func TestSlowClients(t *testing.T) {
	b := start(t, Config{HeadTimeout: 300 * time.Millisecond})
	b.rule("/", &gateway.Rule{})
	c := b.dial()
	began := time.Now()
	go func() {
		for _, err := io.WriteString(c, "GET / HTTP/1.1\r\n"); err == nil; _, err = io.WriteString(c, "X: y\r\n") {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	got, _ := io.ReadAll(c)
	if took := time.Since(began); took > 3*time.Second || !strings.HasPrefix(string(got), "HTTP/1.1 408") {
		t.Errorf("%q after %v", got, took)
	}
}

// TestRapidReset: streams that are opened and reset at once end their connection, after a bounded number of requests to the
// endpoint. Endless CONTINUATION frames end theirs.
func TestRapidReset(t *testing.T) {
	b := start(t, Config{})
	hold := make(chan bool)
	var running atomic.Int32
	var most atomic.Int32
	b.rule("/hold", &gateway.Rule{Backends: []gateway.Backend{b.backend("slow", serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		running.Add(-1)
	}))}})
	t.Cleanup(func() { close(hold) })
	flood := func(send func(f *http2.Framer, block []byte, i uint32) error) {
		c := b.dial()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, http2.ClientPreface)
		f := http2.NewFramer(c, bufio.NewReader(c))
		_ = f.WriteSettings()
		var block strings.Builder
		e := hpack.NewEncoder(&block)
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/hold"}} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		ended := make(chan bool)
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, c)
		}()
		for i := uint32(0); i < 20_000 && send(f, []byte(block.String()), i) == nil; i++ {
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			t.Error("the connection outlives the flood")
		}
	}
	before := runtime.NumGoroutine()
	flood(func(f *http2.Framer, block []byte, i uint32) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndHeaders: true, EndStream: true}); err != nil {
			return err
		}
		return f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	})
	flood(func(f *http2.Framer, block []byte, i uint32) error {
		if i == 0 {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
		}
		return f.WriteContinuation(1, false, []byte("\x00\x01a\x01"+"b"))
	})
	if n := most.Load(); n > 2*maxResets+250 {
		t.Errorf("the endpoint had %d requests of one connection at a time", n)
	}
	for n, i := 0, 0; ; i++ {
		if n = runtime.NumGoroutine(); n < before+2000 {
			break
		}
		if i > 100 {
			t.Fatalf("%d goroutines remain", n)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got := b.ask(2, "GET /x HTTP/1.1"); !strings.HasPrefix(got, "404") {
		t.Error(got)
	}
}

// TestMemory: idle and slow connections have no buffer of their own. Both ends are in this process.
func TestMemory(t *testing.T) {
	b := start(t, Config{})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const idle, slow = 4000, 1000 // each has both ends in this process
	open := make([]net.Conn, 0, idle+slow)
	for i := range idle + slow {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.%d:%d", 1, b.port))
		if err != nil {
			t.Skipf("this process may not have %d connections: %v", i, err)
		}
		defer c.Close()
		open = append(open, c)
		if i < idle {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if resp, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil); err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
		} else {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHo")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / (idle + slow)
	t.Logf("%d bytes for a connection, with the client's end", each)
	if each > 24<<10 {
		t.Errorf("%d bytes for a connection", each)
	}
	runtime.KeepAlive(open)
}
