package server

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/fairway-net/fairway/internal/gateway"
)

// set returns header lines of names and values.
func set(pairs ...string) (all []gateway.Header) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, gateway.Header{Name: pairs[i], Value: pairs[i+1]})
	}
	return all
}

// TestFilters: requests as text, answers as text, the same by both engines. A line of want that begins with "-" must be absent.
func TestFilters(t *testing.T) {
	no := false
	cors := &gateway.CORS{Origins: []string{"https://shop.example", "https://*.foo.example"}, Methods: []string{"GET", "PUT"}, Headers: []string{"X-A"}, Expose: []string{"X-B"}, Credentials: true, MaxAge: time.Hour}
	for name, test := range map[string]struct {
		filters  gateway.Filters
		prefix   string
		captures []string
		request  string
		want     string
	}{
		"request headers": {
			gateway.Filters{RequestHeaders: &gateway.HeaderChange{Set: set("X-Set", "new", "Host", "other.example"), Add: set("X-Add", "b", "User-Agent", "c"), Remove: []string{"X-Gone"}}},
			"/", nil, "GET /x?y=z HTTP/1.1\nX-Set: old\nX-Add: a\nX-Gone: 1\nUser-Agent: me", "200|GET /x?y=z|Host: other.example|X-Set: new|X-Add: a|X-Add: b|User-Agent: me, c|-X-Gone",
		},
		"response headers": {
			gateway.Filters{ResponseHeaders: &gateway.HeaderChange{Set: set("X-Set", "new"), Add: set("X-Add", "b"), Remove: []string{"Content-Type"}}},
			"/", nil, "GET / HTTP/1.1", "200|X-Set: new|X-Add: b|-Content-Type",
		},
		"redirect":              {gateway.Filters{Redirect: &gateway.Redirect{Scheme: "https", Code: 301}}, "/", nil, "GET /a?b HTTP/1.1", "301|Location: https://shop.example/a?b"},
		"redirect to a port":    {gateway.Filters{Redirect: &gateway.Redirect{Host: "o.example", Port: 8443, Scheme: "https"}}, "/", nil, "GET /a HTTP/1.1", "302|Location: https://o.example:8443/a"},
		"redirect prefix":       {gateway.Filters{Redirect: &gateway.Redirect{Scheme: "http", Path: &gateway.PathChange{Prefix: "/new", HasPrefix: true}}}, "/old", nil, "GET /old/x HTTP/1.1", "302|Location: http://shop.example/new/x"},
		"redirect full":         {gateway.Filters{Redirect: &gateway.Redirect{Scheme: "http", Path: &gateway.PathChange{Full: "/f"}}}, "/", nil, "GET /old/x HTTP/1.1", "302|Location: http://shop.example/f"},
		"redirect by URL":       {gateway.Filters{Redirect: &gateway.Redirect{URL: "https://o.example$request_uri", Code: 308}}, "/", nil, "GET /a?b=c HTTP/1.1", "308|Location: https://o.example/a?b=c"},
		"app-root":              {gateway.Filters{Redirect: &gateway.Redirect{OnlyPath: "/", Scheme: "http", Path: &gateway.PathChange{Full: "/app"}}}, "/", nil, "GET / HTTP/1.1", "302|Location: http://shop.example/app"},
		"app-root elsewhere":    {gateway.Filters{Redirect: &gateway.Redirect{OnlyPath: "/", Path: &gateway.PathChange{Full: "/app"}}}, "/", nil, "GET /x HTTP/1.1", "200|GET /x"},
		"rewrite prefix":        {gateway.Filters{Rewrite: &gateway.Rewrite{Path: &gateway.PathChange{Prefix: "/new", HasPrefix: true}, Host: "in.example"}}, "/old", nil, "GET /old/x?q HTTP/1.1", "200|GET /new/x?q|Host: in.example|X-Forwarded-Host: shop.example"},
		"rewrite prefix to /":   {gateway.Filters{Rewrite: &gateway.Rewrite{Path: &gateway.PathChange{Prefix: "/", HasPrefix: true}}}, "/old", nil, "GET /old/x HTTP/1.1", "200|GET /x\n"},
		"rewrite whole prefix":  {gateway.Filters{Rewrite: &gateway.Rewrite{Path: &gateway.PathChange{HasPrefix: true}}}, "/old", nil, "GET /old HTTP/1.1", "200|GET /\n"},
		"rewrite by groups":     {gateway.Filters{Rewrite: &gateway.Rewrite{Target: "/$2?v=$1"}}, "/", []string{"/a/b", "a", "b"}, "GET /a/b?w=1 HTTP/1.1", "200|GET /b?v=a&w=1\n"},
		"rewrite is normalised": {gateway.Filters{Rewrite: &gateway.Rewrite{Target: "/x/$1"}}, "/", []string{"", "../y"}, "GET /a HTTP/1.1", "200|GET /y\n"},
		"preflight": {
			gateway.Filters{CORS: cors}, "/", nil, "OPTIONS / HTTP/1.1\nOrigin: https://a.foo.example\nAccess-Control-Request-Method: PUT",
			"204|Access-Control-Allow-Origin: https://a.foo.example|Access-Control-Allow-Methods: GET, PUT|Access-Control-Allow-Headers: X-A|Access-Control-Max-Age: 3600|Access-Control-Allow-Credentials: true",
		},
		"preflight of another":  {gateway.Filters{CORS: cors}, "/", nil, "OPTIONS / HTTP/1.1\nOrigin: https://evil.example\nAccess-Control-Request-Method: PUT", "204|-Access-Control"},
		"cross-origin":          {gateway.Filters{CORS: cors}, "/", nil, "GET / HTTP/1.1\nOrigin: https://shop.example", "200|Access-Control-Allow-Origin: https://shop.example|Vary: Origin|Access-Control-Expose-Headers: X-B|GET /"},
		"any origin":            {gateway.Filters{CORS: &gateway.CORS{Origins: []string{"*"}}}, "/", nil, "GET / HTTP/1.1\nOrigin: https://b.example", "200|Access-Control-Allow-Origin: *"},
		"allowed":               {gateway.Filters{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, "/", nil, "GET / HTTP/1.1", "200"},
		"not allowed":           {gateway.Filters{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, "/", nil, "GET / HTTP/1.1\nX-Forwarded-For: 10.1.1.1", "403"},
		"denied":                {gateway.Filters{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, "/", nil, "GET / HTTP/1.1", "403"},
		"body fits":             {gateway.Filters{MaxBody: 5}, "/", nil, "POST / HTTP/1.1\n\nhello", "200|hello"},
		"body is too long":      {gateway.Filters{MaxBody: 4}, "/", nil, "POST / HTTP/1.1\n\nhello", "413"},
		"no password":           {gateway.Filters{BasicAuth: &gateway.BasicAuth{Realm: "a \"b\"", Users: users}}, "/", nil, "GET / HTTP/1.1", "401|Www-Authenticate: Basic realm=\"a 'b'\""},
		"bcrypt":                {gateway.Filters{BasicAuth: &gateway.BasicAuth{Users: users}}, "/", nil, "GET / HTTP/1.1\nAuthorization: Basic YmNyeXB0OnNlY3JldA==", "200"},
		"apr1":                  {gateway.Filters{BasicAuth: &gateway.BasicAuth{Users: users}}, "/", nil, "GET / HTTP/1.1\nAuthorization: Basic YXByMTpteVBhc3N3b3Jk", "200"},
		"SHA":                   {gateway.Filters{BasicAuth: &gateway.BasicAuth{Users: users}}, "/", nil, "GET / HTTP/1.1\nAuthorization: Basic c2hhOnBhc3N3b3Jk", "200"},
		"wrong password":        {gateway.Filters{BasicAuth: &gateway.BasicAuth{Users: users}}, "/", nil, "GET / HTTP/1.1\nAuthorization: Basic c2hhOm90aGVy", "401"},
		"unknown user":          {gateway.Filters{BasicAuth: &gateway.BasicAuth{Users: users}}, "/", nil, "GET / HTTP/1.1\nAuthorization: Basic bm9ib2R5Og==", "401"},
		"no access log at this": {gateway.Filters{AccessLog: &no}, "/", nil, "GET / HTTP/1.1", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			bothEngines(t, func(t *testing.T, version int) {
				b := start(t, Config{})
				b.rule(test.prefix, &gateway.Rule{Filters: test.filters, Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
				b.table.rules[0].captures = test.captures
				b.apply()
				got := b.ask(version, test.request)
				for want := range strings.SplitSeq(test.want, "|") {
					if not, absent := strings.CutPrefix(want, "-"); absent == strings.Contains(got, map[bool]string{true: not, false: want}[absent]) {
						t.Errorf("want %q in:\n%s", want, got)
					}
				}
				if !strings.HasPrefix(got, test.want[:3]) {
					t.Errorf("want status %s:\n%s", test.want[:3], got)
				}
			})
		})
	}
}

// users have the hashes that htpasswd -B, -m and -s write.
var users = map[string]string{
	"bcrypt": func() string {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
		if err != nil {
			panic(err)
		}
		return string(hash)
	}(),
	"apr1": "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/",
	"sha":  "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
}

// TestForwardAuth: the authentication server decides. Without a clear answer the request is refused.
func TestForwardAuth(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 0 || r.Header.Get("X-Original-Method") != "POST" || !strings.HasPrefix(r.Header.Get("X-Original-Url"), "http://shop.example/") {
				t.Errorf("asked with %d bytes, %v", r.ContentLength, r.Header)
			}
			switch r.Header.Get("X-Test") {
			case "yes":
				w.Header().Set("X-User", "alice")
			case "no":
				w.WriteHeader(403)
			case "who":
				w.WriteHeader(401)
			case "long":
				_, _ = w.Write(make([]byte, maxAuthBody+1))
			default:
				w.WriteHeader(302)
			}
		})
		back := b.backend("cart", serveHTTP(t, echo))
		b.rule("/", &gateway.Rule{Filters: gateway.Filters{ForwardAuth: &gateway.ForwardAuth{URL: "http://" + at + "/check", Headers: []string{"X-User"}}}, Backends: []gateway.Backend{back}})
		b.rule("/sign", &gateway.Rule{Filters: gateway.Filters{ForwardAuth: &gateway.ForwardAuth{URL: "http://" + at + "/check", SignIn: "https://login.example/start"}}, Backends: []gateway.Backend{back}})
		b.rule("/dead", &gateway.Rule{Filters: gateway.Filters{ForwardAuth: &gateway.ForwardAuth{URL: fmt.Sprintf("http://127.0.0.1:%d/", freePort(t))}}, Backends: []gateway.Backend{back}})
		for request, want := range map[string]string{
			"POST / HTTP/1.1\nX-Test: yes\nX-User: mallory\n\nhi": "200|X-User: alice|hi", "POST / HTTP/1.1\nX-Test: no\n\nhi": "403",
			"POST / HTTP/1.1\nX-Test: who\n\nhi": "401", "POST / HTTP/1.1\nX-Test: other\n\nhi": "500", "POST / HTTP/1.1\nX-Test: long\n\nhi": "500",
			"POST /sign?a=b HTTP/1.1\nX-Test: who\n\nhi": "302|Location: https://login.example/start?rd=http%3A%2F%2Fshop.example%2Fsign%3Fa%3Db", "POST /dead HTTP/1.1\n\nhi": "500",
		} {
			got := b.ask(version, request)
			for w := range strings.SplitSeq(want, "|") {
				if !strings.Contains(got, w) || strings.Contains(got, "mallory") {
					t.Errorf("%q: want %q in:\n%s", request, w, got)
				}
			}
		}
	})
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:1", "169.254.169.254:80", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		if _, err := s.authClient.Get("http://" + address + "/"); err == nil || !strings.Contains(err.Error(), errAddress.Error()) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestLimits: a client's rate and its requests at a time.
func TestLimits(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		hold, held := make(chan bool), make(chan bool)
		at := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/conns") {
				held <- true
				<-hold
			}
		})
		back := b.backend("cart", at)
		b.rule("/rate", &gateway.Rule{Filters: gateway.Filters{Limits: &gateway.Limits{PerSecond: 0.01, Burst: 2, Code: 429}}, Backends: []gateway.Backend{back}})
		b.rule("/conns", &gateway.Rule{Filters: gateway.Filters{Limits: &gateway.Limits{Connections: 1}}, Backends: []gateway.Backend{back}})
		b.rule("/exempt", &gateway.Rule{Filters: gateway.Filters{Limits: &gateway.Limits{PerSecond: 0.01, Exempt: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}, Backends: []gateway.Backend{back}})
		got := ""
		for range 4 {
			got += b.ask(version, "GET /rate HTTP/1.1")[:4]
			if e := b.ask(version, "GET /exempt HTTP/1.1"); !strings.HasPrefix(e, "200") {
				t.Error(e)
			}
		}
		if got != "200\n200\n200\n429\n" {
			t.Error(got)
		}
		done := make(chan string)
		go func() { done <- b.ask(version, "GET /conns HTTP/1.1") }()
		<-held
		if got := b.ask(version, "GET /conns HTTP/1.1"); !strings.HasPrefix(got, "503") {
			t.Error(got)
		}
		hold <- true
		if got := <-done; !strings.HasPrefix(got, "200") {
			t.Error(got)
		}
	})
}

// TestSessionWeightMirror: a cookie keeps its endpoint, weights share requests, a mirror gets a copy, a hash stays.
func TestSessionWeightMirror(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{SessionKey: []byte("key")})
		named := func(name string) string {
			return serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "I am "+name) })
		}
		one, two := named("one"), named("two")
		copies := make(chan string, 10)
		mirror := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			copies <- r.Method + " " + r.RequestURI + " " + r.Host + " " + string(body)
		})
		b.rule("/session", &gateway.Rule{Session: &gateway.Session{Name: "route", Lifetime: time.Hour, SameSite: "Lax"}, Backends: []gateway.Backend{b.backend("both", one, two)}})
		b.rule("/hash", &gateway.Rule{HashBy: "$arg_user", Backends: []gateway.Backend{b.backend("both", one, two)}})
		heavy, light := b.backend("one", one), b.backend("two", two)
		heavy.Weight, light.Weight = 9, 1
		b.rule("/weight", &gateway.Rule{Backends: []gateway.Backend{heavy, light, {Weight: 0, Refused: "never"}}})
		b.rule("/mirror", &gateway.Rule{Filters: gateway.Filters{Mirrors: []gateway.Mirror{{Backend: b.backend("mirror", mirror), Numerator: 1, Denominator: 1}, {Backend: b.backend("mirror", mirror), Numerator: 0, Denominator: 5}}}, Backends: []gateway.Backend{heavy}})
		first := b.ask(version, "GET /session HTTP/1.1")
		_, cookie, _ := strings.Cut(first, "Set-Cookie: ")
		cookie, rest, _ := strings.Cut(cookie, ";")
		if !strings.HasPrefix(cookie, "route=") || !strings.Contains(rest, "Path=/; Max-Age=3600; HttpOnly; SameSite=Lax") || strings.Contains(cookie, "127") {
			t.Fatal(first)
		}
		_, who, _ := strings.Cut(first, "I am ")
		for range 6 {
			if got := b.ask(version, "GET /session HTTP/1.1\nCookie: a=b; "+cookie); !strings.HasSuffix(got, who) || strings.Contains(got, "Set-Cookie") {
				t.Errorf("first %s, then:\n%s", who, got)
			}
		}
		if got := b.ask(version, "GET /session HTTP/1.1\nCookie: "+cookie+"x"); !strings.Contains(got, "Set-Cookie") {
			t.Errorf("a forged cookie is believed:\n%s", got)
		}
		seen := map[string]bool{}
		for i := range 20 {
			got := b.ask(version, fmt.Sprintf("GET /hash?user=%d HTTP/1.1", i))
			if again := b.ask(version, fmt.Sprintf("GET /hash?user=%d HTTP/1.1", i)); again != got {
				t.Errorf("%q, then %q", got, again)
			}
			seen[got] = true
		}
		if len(seen) != 2 {
			t.Errorf("the hash chose of %v", seen)
		}
		n := 0
		for range 200 {
			if strings.Contains(b.ask(version, "GET /weight HTTP/1.1"), "one") {
				n++
			}
		}
		if n < 155 || n > 199 {
			t.Errorf("%d of 200 requests for 9 of 10", n)
		}
		b.ask(version, "POST /mirror?a=b HTTP/1.1\n\nhello")
		select {
		case got := <-copies:
			if got != "POST /mirror?a=b shop.example hello" {
				t.Error(got)
			}
		case <-time.After(5 * time.Second):
			t.Error("no copy")
		}
	})
}

// TestAccessLog: a line of JSON for each request, and none for a rule that asks for none.
func TestAccessLog(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		log := &lockedBuffer{}
		b := start(t, Config{AccessLog: slog.New(slog.NewJSONHandler(log, nil)), LogRequests: true})
		no := false
		back := b.backend("cart", serveHTTP(t, echo))
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{back}})
		b.rule("/quiet", &gateway.Rule{Filters: gateway.Filters{AccessLog: &no}, Backends: []gateway.Backend{back}})
		b.ask(version, "GET /quiet HTTP/1.1")
		b.ask(version, "GET /a HTTP/1.1\nUser-Agent: me\"\\")
		b.stop()
		got := log.String()
		for _, want := range []string{`"method":"GET","host":"shop.example","path":"/a","status":200`, `"agent":"me\"\\"`, `"route":"HTTPRoute/shop/cart"`, `"backend":"shop/cart:http"`} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
		if strings.Contains(got, "quiet") {
			t.Error(got)
		}
	})
}
