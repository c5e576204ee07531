package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// fuzzTable is a compiled table with rules for /exact, /admin, a header, a query parameter, a host, and all else. The name
// of the rule's backend is in each answer.
func fuzzTable(b *bench) *gateway.Table {
	c := gateway.NewCompiler(gateway.Settings{IngressHTTP: freePort(b), IngressHTTPS: freePort(b)})
	c.Set(&gateway.Class{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/gateway"})
	g := &gateway.Gateway{Class: "fairway", Bind: map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 80}: b.port}}
	g.Name = api.Name{Namespace: "shop", Name: "gw"}
	g.Listeners = []gateway.ListenerSpec{{Name: "http", Port: 80, Protocol: "HTTP"}}
	c.Set(g)
	r := &gateway.HTTPRoute{}
	r.Name = api.Name{Namespace: "shop", Name: "all"}
	r.Parents = []gateway.ObjectRef{{GroupKind: gateway.GroupKind{Group: gateway.Group, Kind: "Gateway"}, Name: "gw"}}
	for name, match := range map[string]gateway.HTTPMatch{
		"exact":  {Path: gateway.StringMatch{Type: "Exact", Value: "/exact"}},
		"admin":  {Path: gateway.StringMatch{Type: "PathPrefix", Value: "/admin"}},
		"header": {Headers: []gateway.NamedMatch{{Name: "X-Route", StringMatch: gateway.StringMatch{Value: "a"}}}},
		"query":  {Query: []gateway.NamedMatch{{Name: "route", StringMatch: gateway.StringMatch{Value: "a"}}}},
		"else":   {},
	} {
		s := &gateway.Service{Ports: []gateway.ServicePort{{Proto: api.TCP, Port: 80}}}
		s.Name = api.Name{Namespace: "shop", Name: name}
		c.Set(s)
		r.Rules = append(r.Rules, gateway.HTTPRule{
			Matches:  []gateway.HTTPMatch{match},
			Backends: []gateway.BackendRef{{ObjectRef: gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: "Service"}, Name: name, Port: 80}, Weight: 1}},
		})
		key := api.PortName{Name: s.Name}
		b.backend(name, serveHTTP(b, func(w http.ResponseWriter, req *http.Request) { report(w, req, name) }))
		b.endpoints[key] = b.endpoints[api.PortName{Name: s.Name, Port: "http"}]
	}
	c.Set(r)
	return c.Table()
}

// report writes what a backend sees of a request. Headers that the versions of HTTP need for themselves are left out.
func report(w http.ResponseWriter, req *http.Request, name string) {
	body, err := io.ReadAll(req.Body)
	fmt.Fprintf(w, "%s\n%s %q host %q\n", name, req.Method, req.RequestURI, req.Host)
	var lines []string
	for key, values := range req.Header {
		if key != "Te" && key != "Content-Length" && key != "Accept-Encoding" {
			lines = append(lines, fmt.Sprintf("%s: %q", key, strings.Join(values, ", ")))
		}
	}
	slices.Sort(lines)
	fmt.Fprintf(w, "%s\nbody %q %v", strings.Join(lines, "\n"), body, err)
}

// A fuzzed is a request that is sent by both versions of HTTP.
type fuzzed struct {
	method, authority, target string
	headers                   [][2]string
	body                      string
}

// h1 sends the request by HTTP/1.1.
func (b *bench) h1(r fuzzed) (status, answer string) {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.target, r.authority)
	framed := false
	for _, h := range r.headers {
		fmt.Fprintf(&s, "%s: %s\r\n", h[0], h[1])
		framed = framed || strings.EqualFold(h[0], "content-length") || strings.EqualFold(h[0], "transfer-encoding")
	}
	if r.body != "" && !framed {
		fmt.Fprintf(&s, "Content-Length: %d\r\n", len(r.body))
	}
	s.WriteString("\r\n" + r.body)
	c := b.dial()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, s.String())
	answers := bufio.NewReader(c)
	resp, err := http.ReadResponse(answers, &http.Request{Method: r.method})
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(answers, &http.Request{Method: r.method})
	}
	if err != nil {
		return err.Error(), ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode), string(text)
}

// h2 sends the request by HTTP/2.
func (b *bench) h2(r fuzzed) (status, answer string) {
	fields := [][2]string{{":method", r.method}, {":authority", r.authority}, {":path", r.target}}
	for _, h := range r.headers {
		fields = append(fields, [2]string{strings.ToLower(h[0]), h[1]})
	}
	return b.frames(fields, r.body)
}

// special are headers that mean something else in each version of HTTP, so HTTP/2 may refuse more.
var special = []string{
	"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length", "host", "expect",
}

// FuzzEngines: a request gets the same route, the same form and the same refusal by HTTP/1.1 and by HTTP/2, and a backend
// reads the path as the table did.
func FuzzEngines(f *testing.F) {
	for _, target := range []string{
		"/", "/exact", "/exact/", "/admin", "/admin/x", "/ADMIN", "/%61dmin", "/x/../admin", "/x/%2e%2e/admin", "//admin", "/./admin", "/admin/..",
		"/admin/%2e%2e/x", "/admin;x", "/admin%3bx", "/a%2fadmin", "/a%5cb", "/a\\b", "/%00", "/%", "/%zz", "/é", "/%c3%a9", "/?route=a", "/?route=a&route=b",
		"/?x=1&route=%61", "/?route=a%20", "/?a b", "/?a#b", "/#a", "/a b", "*", "", "x", "http://other.example/admin", "/?\x7f", "/a?b?c", "/..", "/admin?/../x",
	} {
		f.Add("GET", "shop.example", target, "X-Route", "b", "Cookie", "a=1", "")
	}
	for _, h := range [][2]string{
		{"X-Route", "a"}, {"x-route", " a"}, {"X_Route", "a"}, {"X-Forwarded-For", "9.9.9.9"}, {"X_Forwarded_For", "9.9.9.9"}, {"X-Real-Ip", "9.9.9.9"},
		{"Forwarded", "for=9.9.9.9"}, {"Connection", "X-Route"}, {"Te", "trailers"}, {"Te", "gzip"}, {"Host", "other.example"}, {"Expect", "100-continue"},
		{"Expect", "x"}, {"Content-Length", "0"}, {"Content-Length", "2"}, {"Content-Length", "+2"}, {"Transfer-Encoding", "chunked"}, {"Upgrade", "h2c"},
		{"User-Agent", "a"}, {"Cookie", "b=2"}, {"X-Route", "a\x00"}, {"X-Route", "é"}, {"X Route", "a"}, {"", "a"}, {"X-Route", ""}, {":path", "/admin"},
		{"X-Original-Url", "/admin"}, {"X-Rewrite-Url", "/admin"}, {"X-HTTP-Method-Override", "PUT"}, {"Trailer", "X-Route"},
	} {
		f.Add("POST", "shop.example", "/", h[0], h[1], "X-Other", "c", "hi")
		f.Add("GET", "shop.example", "/", "X-Route", "a", h[0], h[1], "")
	}
	for _, a := range []string{"SHOP.example.", "shop.example:80", "shop.example:x", "", "a@b", "[::1]:80", "[::1", "a/b", "a b", "..", "é"} {
		f.Add("GET", a, "/", "X-Other", "c", "Accept", "*/*", "")
	}
	for _, m := range []string{"", "get", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PRI", "G T", "G:T", "DELETE"} {
		f.Add(m, "shop.example", "/", "X-Other", "c", "Accept", "*/*", "")
	}
	b := start(f, Config{HeadTimeout: 200 * time.Millisecond, SendTimeout: 200 * time.Millisecond})
	if err := b.srv.Apply(fuzzTable(b), b.endpoints); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, authority, target, name1, value1, name2, value2, body string) {
		r := fuzzed{method, authority, target, [][2]string{{name1, value1}, {name2, value2}}, body}
		compareEngines(&bench{TB: t, port: b.port}, r)
	})
}

func compareEngines(b *bench, r fuzzed) {
	t := b.TB
	all := r.method + r.authority + r.target
	refuses := !strings.HasPrefix(r.target, "/") // HTTP/2 may refuse what HTTP/1.1 accepts
	for _, h := range r.headers {
		all += h[0] + h[1]
		refuses = refuses || strings.HasPrefix(h[0], ":") || slices.Contains(special, strings.ToLower(h[0])) ||
			strings.Trim(h[1], " \t") != h[1] // HTTP/1.1 allows spaces around a value
	}
	if len(all)+len(r.body) > 8<<10 {
		return
	}
	status2, answer2 := b.h2(r)
	if strings.ContainsAny(all, "\r\n") { // HTTP/1.1 would read another request
		if strings.HasPrefix(status2, "2") {
			t.Errorf("%q is served by HTTP/2", r)
		}
		return
	}
	status1, answer1 := b.h1(r)
	served1, served2 := strings.HasPrefix(status1, "2"), strings.HasPrefix(status2, "2")
	if served1 != served2 && !(refuses && served1) {
		t.Errorf("%q: HTTP/1.1 %s, HTTP/2 %s", r, status1, status2)
	}
	if served1 && served2 && answer1 != answer2 {
		t.Errorf("%q\nHTTP/1.1:\n%s\nHTTP/2:\n%s", r, answer1, answer2)
	}
	if served1 {
		checkPath(t, r, answer1)
	}
	if served2 {
		checkPath(t, r, answer2)
	}
}

// checkPath checks that the path of a report leads a backend to the same decision as the table.
func checkPath(t testing.TB, r fuzzed, answer string) {
	name, rest, ok := strings.Cut(answer, "\n")
	if !ok { // HEAD
		return
	}
	var method, uri string
	if _, err := fmt.Sscanf(rest, "%s %q", &method, &uri); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		t.Fatalf("%q: the backend cannot read %q: %v", r, uri, err)
	}
	if normal, ok := gateway.Normalise(u.EscapedPath()); !ok || normal != u.EscapedPath() {
		t.Errorf("%q: the path %q is forwarded, and its form is %q", r, u.EscapedPath(), normal)
	}
	clean := path.Clean(u.Path)
	if admin := clean == "/admin" || strings.HasPrefix(clean, "/admin/"); admin != (name == "admin") {
		t.Errorf("%q: %q is sent to %s", r, uri, name)
	}
	if strings.Contains(rest, "9.9.9.9") && !strings.Contains(strings.Join(r.headers[0][:], " ")+strings.Join(r.headers[1][:], " ")+r.target+r.body, "9.9.9.9") {
		t.Errorf("%q: the backend believes the client", r)
	}
}
