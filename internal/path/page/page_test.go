package page

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path"
)

// fixed is a Source with one Service.
type fixed struct{ hold chan struct{} }

func (f fixed) View(_ context.Context, name api.Name, node, _ string) (*View, error) {
	switch {
	case node == "gone":
		return nil, errors.New("there is no node [kubectl get nodes lists them]")
	case name.Name != "web":
		return nil, nil
	}
	if f.hold != nil {
		<-f.hold
	}
	return &View{Service: Service{Namespace: "shop", Name: "web"}, Node: node}, nil
}

func (f fixed) Traffic(ctx context.Context, service api.Name, send func(Traffic)) error {
	if service.Name == "none" {
		return errors.New("no agent answers [fairway status]")
	}
	for i := 0; ctx.Err() == nil; i++ {
		send(Traffic{Nodes: i, Edges: []Edge{}})
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (f fixed) Ask(ctx context.Context, q Question, send func(Answer)) error {
	send(Answer{Path: &path.Path{To: path.Target{Asked: q.To}}})
	if q.Prove {
		send(Answer{Seen: &Seen{Node: "node-1", Text: "prerouting"}})
		return errors.New("no agent runs on node-1 [start one first]")
	}
	return nil
}

const (
	host = "127.0.0.1:8080"
	name = "fairway-page-8080" // the cookie's
)

type header map[string]string

// do sends a request with the cookie, if it is not empty.
func do(p *Page, method, url, cookie string, h header, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	r.Host = host
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: name, Value: cookie})
	}
	for k, v := range h {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// TestGuard checks Host, Origin, the fetch's site, the cookie and the policy.
func TestGuard(t *testing.T) {
	p := New(host, "secret", fixed{})
	form := header{tokenHeader: p.form}
	for _, x := range []struct {
		method, url, cookie string
		h                   header
		status              int
	}{
		{"GET", "/", "secret", nil, 200},
		{"GET", "/main.js", "secret", nil, 200},
		{"GET", "/page.css", "secret", nil, 200},
		{"GET", "/services.json", "secret", nil, 200},
		{"GET", "/", "secret", header{"Host": "localhost:8080"}, 200},
		{"GET", "/", "secret", header{"Sec-Fetch-Site": "cross-site"}, 200}, // a link
		{"GET", "/?token=secret", "", nil, 303},
		{"GET", "/?token=wrong", "", nil, 403},
		{"GET", "/services.json?token=secret", "", nil, 403},
		{"GET", "/services.json", "", nil, 403},
		{"GET", "/", "wrong", nil, 403},
		{"GET", "/", "secret", header{"Host": "evil.example:8080"}, 421},
		{"GET", "/?token=secret", "", header{"Host": "127.0.0.1:9090"}, 421},
		{"GET", "/services.json", "secret", header{"Origin": "http://evil.example"}, 403},
		{"GET", "/services.json", "secret", header{"Origin": "http://127.0.0.1:9090"}, 403},
		{"GET", "/services.json", "secret", header{"Sec-Fetch-Site": "same-site"}, 403}, // another port
		{"POST", "/path", "secret", nil, 403},
		{"POST", "/path", "secret", header{tokenHeader: "secret"}, 403},
		{"POST", "/path", "", form, 403},
		{"POST", "/path", "secret", header{tokenHeader: p.form, "Origin": "http://localhost:8080"}, 403},
		{"POST", "/services.json", "secret", form, 405},
		{"GET", "/../page.go", "secret", nil, 307},
		{"GET", "/page.go", "secret", nil, 404},
	} {
		w := do(p, x.method, x.url, x.cookie, x.h, "{}")
		if w.Code != x.status || w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%+v: status %d, headers %v", x, w.Code, w.Header())
		}
	}
	c := do(p, "GET", "/?token=secret", "", nil, "").Result().Cookies()[0]
	if c.Name != name || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("%+v", c)
	}
	if strings.Contains(do(p, "GET", "/", "secret", nil, "").Body.String(), "secret") {
		t.Error("the page has the cookie's token")
	}
}

// TestInline shows that the page has no code that the policy forbids, and names no other site.
func TestInline(t *testing.T) {
	for _, f := range []string{"index.html", "page.css", "main.js", "list.js", "live.js", "service.js", "map.js", "path.js", "dom.js"} {
		data, err := web.ReadFile("web/" + f)
		if err != nil {
			t.Fatal(err)
		}
		data = bytes.ReplaceAll(data, []byte("http://www.w3.org/2000/svg"), nil) // the name of a namespace
		for _, bad := range []string{"style=\"", "<style", "onclick=", "innerHTML", "eval(", "http://", "https://", "@import", "javascript:"} {
			if bytes.Contains(data, []byte(bad)) {
				t.Errorf("%s has %s", f, bad)
			}
		}
	}
}

func TestView(t *testing.T) {
	p := New(host, "secret", fixed{})
	for url, want := range map[string]string{
		"/service.json?name=shop/web&node=n": `"node":"n"`,
		"/service.json?name=shop/none":       `{"error":"there is no Service shop/none"}`,
		"/service.json?name=x":               `"error":`,
		"/service.json?name=a/b&node=gone":   `{"error":"there is no node","advice":"kubectl get nodes lists them"}`,
	} {
		if w := do(p, "GET", url, "secret", nil, ""); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", url, w.Code, w.Body, want)
		}
	}
}

// TestBusy shows that views have a limited number of places.
func TestBusy(t *testing.T) {
	hold := make(chan struct{})
	p := New(host, "secret", fixed{hold})
	done := make(chan int)
	for range maxReads {
		go func() { done <- do(p, "GET", "/service.json?name=shop/web", "secret", nil, "").Code }()
	}
	for len(p.reads) < maxReads {
		time.Sleep(time.Millisecond)
	}
	if w := do(p, "GET", "/service.json?name=shop/web", "secret", nil, ""); w.Code != 503 || !strings.Contains(w.Body.String(), "busy") {
		t.Error(w.Code, w.Body)
	}
	close(hold)
	for range maxReads {
		if code := <-done; code != 200 {
			t.Error(code)
		}
	}
	if w := do(p, "GET", "/service.json?name=shop/web", "secret", nil, ""); w.Code != 200 {
		t.Error(w.Code, w.Body)
	}
}

func TestPath(t *testing.T) {
	p := New(host, "secret", fixed{})
	server := httptest.NewServer(p)
	defer server.Close()
	ask := func(body string) string {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/path", strings.NewReader(body))
		r.Host = host
		r.AddCookie(&http.Cookie{Name: name, Value: "secret"})
		r.Header.Set(tokenHeader, p.form)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		all, _ := io.ReadAll(answer.Body)
		return string(all)
	}
	if got := ask(`{"from": "outside", "to": "svc/shop/web"}`); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"asked":"svc/shop/web"`) {
		t.Error(got)
	}
	got := ask(`{"from": "outside", "to": "x", "prove": true}`)
	if strings.Count(got, "\n") != 3 || !strings.Contains(got, `"seen":{"node":"node-1","text":"prerouting"}`) || !strings.Contains(got, `{"error":"no agent runs on node-1","advice":"start one first"}`) {
		t.Error(got)
	}
	for _, bad := range []string{"", "[]", `{"from": "` + strings.Repeat("x", maxPlace+1) + `"}`, `{"from": "` + strings.Repeat("x", maxBody) + `"}`} {
		if got := ask(bad); !strings.Contains(got, "no question") {
			t.Error(got)
		}
	}
}
