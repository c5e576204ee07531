package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// many makes n rows.
func many(n int, finding string) []Service {
	rows := make([]Service, n)
	for i := range rows {
		rows[i] = Service{Namespace: fmt.Sprintf("team-%d", i%40), Name: fmt.Sprintf("service-%d", i), Type: "ClusterIP", Finding: finding,
			Addresses: []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250)}, Ports: []string{"80/TCP"}, Ready: 2, Endpoints: 3}
	}
	return rows
}

// open opens the page's stream.
func open(t *testing.T, p *Page) (*bufio.Reader, *update, func()) {
	t.Helper()
	server := httptest.NewServer(p)
	ctx, stop := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/events", nil)
	r.Host = host
	r.AddCookie(&http.Cookie{Name: name, Value: "secret"})
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b := bufio.NewReaderSize(answer.Body, 1<<20)
	return b, next(t, b), func() { stop(); answer.Body.Close(); server.Close() }
}

func next(t *testing.T, b *bufio.Reader) *update {
	t.Helper()
	for {
		line, err := b.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var u update
			if err := json.Unmarshal([]byte(data), &u); err != nil {
				t.Fatal(err)
			}
			return &u
		}
	}
}

// TestEvents shows that a message has what changed only, and that changes which come fast become one message.
func TestEvents(t *testing.T) {
	p := New(host, "secret", fixed{})
	p.pause = 200 * time.Millisecond
	p.Set(many(1000, ""), nil)
	b, first, stop := open(t, p)
	defer stop()
	if !first.Reset || len(first.Rows) != 1000 || first.State == nil {
		t.Fatalf("%v, %d rows", first.Reset, len(first.Rows))
	}
	rows := many(1000, "")
	p.Set(rows, nil) // no change
	for i := range 50 {
		rows[7].Ready = i + 10
		p.Set(rows, nil)
	}
	p.Set(nil, []string{"team-0/service-0", "team-0/none"})
	messages, last := 0, ""
	for gone := 0; gone == 0; messages++ {
		u := next(t, b)
		if u.Reset || len(u.Rows) > 1 || u.State != nil {
			t.Fatalf("%+v", u)
		}
		if gone = len(u.Gone); len(u.Rows) > 0 {
			last = string(u.Rows[0])
		}
	}
	if messages > 25 || !strings.Contains(last, `"ready":59`) {
		t.Errorf("%d messages for 51 changes, the last is %s", messages, last)
	}
	p.SetState(State{Error: "the API server refuses"})
	if u := next(t, b); len(u.Rows)+len(u.Gone) != 0 || !strings.Contains(string(u.State), "refuses") {
		t.Errorf("%+v", u)
	}
	if !p.Watched() {
		t.Error("nobody watches")
	}
}

// TestForgotten shows that a browser which missed too many removals gets the whole list.
func TestForgotten(t *testing.T) {
	p := New(host, "secret", fixed{})
	p.Set(many(maxGone+10, ""), nil)
	u, _ := p.board.since(0)
	early := u.Version
	for i, s := range many(maxGone+5, "") {
		if p.Set(nil, []string{s.Namespace + "/" + s.Name}); i == 100 {
			u, _ = p.board.since(0)
		}
	}
	if now, _ := p.board.since(early); !now.Reset || len(now.Rows) != 5 || now.Gone != nil {
		t.Errorf("%v, %d rows, %d gone", now.Reset, len(now.Rows), len(now.Gone))
	}
	if now, _ := p.board.since(u.Version); now.Reset || len(now.Gone) != maxGone+5-101 {
		t.Errorf("%v, %d gone", now.Reset, len(now.Gone))
	}
	if now, _ := p.board.since(1 << 40); !now.Reset { // of an earlier command
		t.Error("no reset")
	}
}

// TestSlowReader shows that a browser which does not read loses its stream, and that others do not wait for it.
func TestSlowReader(t *testing.T) {
	p := New(host, "secret", fixed{})
	p.write, p.pause = 300*time.Millisecond, time.Millisecond
	server := httptest.NewServer(p)
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /events HTTP/1.1\r\nHost: %s\r\nCookie: %s=secret\r\n\r\n", host, name)
	for !p.Watched() {
		time.Sleep(time.Millisecond)
	}
	end := time.Now().Add(20 * time.Second)
	for i := 0; p.Watched(); i++ { // about 4 MB each, which no socket keeps for long
		start := time.Now()
		if p.Set(many(20000, fmt.Sprint(i)), nil); time.Since(start) > 5*time.Second {
			t.Fatal("Set waited for the browser")
		}
		if time.Now().After(end) {
			t.Fatal("the stream goes on")
		}
	}
}

// TestTraffic shows that a slow browser gets the newest figures only, that an error is told, and that the places are limited.
func TestTraffic(t *testing.T) {
	p := New(host, "secret", fixed{})
	server := httptest.NewServer(p)
	defer server.Close()
	get := func(url string) (*bufio.Reader, func()) {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+url, nil)
		r.Host = host
		r.AddCookie(&http.Cookie{Name: name, Value: "secret"})
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(answer.Body), func() { answer.Body.Close() }
	}
	b, stop := get("/traffic")
	for range 3 {
		if line, err := b.ReadString('\n'); err != nil || !strings.HasPrefix(line, `data: {"nodes":`) {
			t.Fatal(line, err)
		}
		_, _ = b.ReadString('\n')
	}
	stop()
	for end := time.Now().Add(10 * time.Second); len(p.maps) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the map goes on without its browser")
		}
	}
	b, stop = get("/traffic?service=shop/none")
	defer stop()
	if line, _ := b.ReadString('\n'); !strings.Contains(line, `"error":"no agent answers","advice":"fairway status"`) {
		t.Error(line)
	}
	p.maps <- struct{}{}
	p.maps <- struct{}{}
	if w := do(p, "GET", "/traffic", "secret", nil, ""); w.Code != 503 {
		t.Error(w.Code)
	}
	if w := do(p, "GET", "/traffic?service=x", "secret", nil, ""); w.Code != 400 {
		t.Error(w.Code)
	}
}

// TestStreams shows that the open pages are counted.
func TestStreams(t *testing.T) {
	p := New(host, "secret", fixed{})
	for range maxStreams {
		p.streams <- struct{}{}
	}
	if w := do(p, "GET", "/events", "secret", nil, ""); w.Code != 503 {
		t.Error(w.Code)
	}
}

// TestHostileNames shows that a name cannot end its line or its script.
func TestHostileNames(t *testing.T) {
	p := New(host, "secret", fixed{})
	p.Set([]Service{{Namespace: "a", Name: "b", Finding: "</script>\ndata: {}\n\n<img src=x onerror=alert(1)>"}}, nil)
	_, u, stop := open(t, p)
	defer stop()
	if len(u.Rows) != 1 || strings.Contains(string(u.Rows[0]), "<") {
		t.Errorf("%s", u.Rows)
	}
}

// BenchmarkFirst makes the first message for 5,000 Services, BenchmarkChange one with a change.
func BenchmarkFirst(b *testing.B)  { benchmark(b, func(uint64) uint64 { return 0 }) }
func BenchmarkChange(b *testing.B) { benchmark(b, func(v uint64) uint64 { return v }) }

func benchmark(b *testing.B, version func(uint64) uint64) {
	p := New(host, "secret", fixed{})
	rows := many(5000, "")
	p.Set(rows, nil)
	u, _ := p.board.since(0)
	one := rows[77]
	one.Ready = 0
	p.Set([]Service{one}, nil)
	bytes := 0
	for b.Loop() {
		now, _ := p.board.since(version(u.Version))
		bytes = len(encode(now))
	}
	b.ReportMetric(float64(bytes), "bytes")
}
