package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/service"
)

// An oracleCase is an Ingress of the host NAME.example, and the configuration of nginx that means the same, written by hand.
// BACKEND in it is the backend's address, USERS a file of passwords.
type oracleCase struct {
	annotations map[string]string
	path, kind  string // of the Ingress; empty: / of type Prefix
	outside     string // beside the server, as a zone of limits
	nginx       string // in the server
	requests    []string
}

const pass = " proxy_pass http://BACKEND; "

// oracle has the cases by their names. A request is METHOD PATH [NAME: VALUE | …] [body BODY].
var oracle = map[string]oracleCase{
	"prefix": {path: "/foo", nginx: "location /foo/ {" + pass + "} location = /foo {" + pass + "}",
		requests: []string{"GET /foo", "GET /foo/", "GET /foo/x?q=1", "GET /foox", "GET /", "GET /x/../foo/y", "GET //foo"}},
	"exact": {path: "/bar", kind: "Exact", nginx: "location = /bar {" + pass + "}", requests: []string{"GET /bar", "GET /bar/", "GET /BAR", "GET /bar?q=1"}},
	"rewrite": {path: "/app(/|$)(.*)", kind: "ImplementationSpecific", annotations: map[string]string{"rewrite-target": "/$2", "x-forwarded-prefix": "/app", "upstream-vhost": "inner.example"},
		nginx:    `location ~* "^/app(/|$)(.*)" { rewrite "(?i)/app(/|$)(.*)" /$2 break; proxy_set_header X-Forwarded-Prefix "/app"; proxy_set_header Host "inner.example";` + pass + "}",
		requests: []string{"GET /app/x", "GET /app", "GET /app/", "GET /APP/x/y?q=1", "GET /apple", "GET /other"}},
	"root":      {annotations: map[string]string{"app-root": "/app"}, nginx: "if ($uri = /) { return 302 $scheme://$http_host/app; } location / {" + pass + "}", requests: []string{"GET /", "GET /x"}},
	"permanent": {annotations: map[string]string{"permanent-redirect": "https://new.example$request_uri"}, nginx: "location / { return 301 https://new.example$request_uri; }", requests: []string{"GET /x?q=1", "POST /y"}},
	"temporal":  {annotations: map[string]string{"temporal-redirect": "https://new.example/"}, nginx: "location / { return 302 https://new.example/; }", requests: []string{"GET /x?q=1"}},
	"allowed":   {annotations: map[string]string{"whitelist-source-range": "127.0.0.0/8"}, nginx: "location / { allow 127.0.0.0/8; deny all;" + pass + "}", requests: []string{"GET /x"}},
	"refused":   {annotations: map[string]string{"whitelist-source-range": "10.0.0.0/8"}, nginx: "location / { allow 10.0.0.0/8; deny all;" + pass + "}", requests: []string{"GET /x"}},
	"denied":    {annotations: map[string]string{"denylist-source-range": "127.0.0.0/8"}, nginx: "location / { deny 127.0.0.0/8;" + pass + "}", requests: []string{"GET /x"}},
	"body":      {annotations: map[string]string{"proxy-body-size": "10"}, nginx: "location / { client_max_body_size 10;" + pass + "}", requests: []string{"POST /x body 0123456789", "POST /x body 0123456789a"}},
	"megabyte":  {nginx: "location / { client_max_body_size 1m;" + pass + "}", requests: []string{"POST /x body " + strings.Repeat("x", 1<<20), "POST /x body " + strings.Repeat("x", 1<<20+1)}},
	"limits": {annotations: map[string]string{"limit-rpm": "1"}, outside: "limit_req_zone $binary_remote_addr zone=limits:1m rate=1r/m;",
		nginx: "location / { limit_req zone=limits burst=5 nodelay; limit_req_status 503;" + pass + "}", requests: []string{"GET /1", "GET /2", "GET /3", "GET /4", "GET /5", "GET /6", "GET /7"}},
	"basic": {annotations: map[string]string{"auth-type": "basic", "auth-secret": "users", "auth-realm": "Shop"}, nginx: `location / { auth_basic "Shop"; auth_basic_user_file USERS;` + pass + "}",
		requests: []string{"GET /x", "GET /x Authorization: Basic am9lOnNlY3JldA==", "GET /x Authorization: Basic am9lOndyb25n", "GET /x Authorization: Bearer x"}},
	"cors": {annotations: map[string]string{"enable-cors": "true", "cors-allow-headers": "X-One, X-Two"},
		nginx: `set $max ""; if ($request_method = 'OPTIONS') { set $max 1728000; } add_header Access-Control-Allow-Origin "*" always; add_header Access-Control-Allow-Credentials "true" always;
			add_header Access-Control-Allow-Methods "GET, PUT, POST, DELETE, PATCH, OPTIONS" always; add_header Access-Control-Allow-Headers "X-One, X-Two" always; add_header Access-Control-Max-Age "$max" always;
			location / { if ($request_method = 'OPTIONS') { return 204; }` + pass + "}",
		requests: []string{"OPTIONS /x" + asked}},
	"origins": {annotations: map[string]string{"enable-cors": "true", "cors-allow-origin": "https://a.example", "cors-allow-headers": "X-One, X-Two"},
		nginx: `location / { if ($request_method = 'OPTIONS') { add_header Access-Control-Allow-Origin "https://a.example" always; add_header Access-Control-Allow-Credentials "true" always;
			add_header Access-Control-Allow-Methods "GET, PUT, POST, DELETE, PATCH, OPTIONS" always; add_header Access-Control-Allow-Headers "X-One, X-Two" always; add_header Access-Control-Max-Age 1728000 always; return 204; }
			add_header Access-Control-Allow-Origin "https://a.example" always; add_header Access-Control-Allow-Credentials "true" always;` + pass + "}",
		requests: []string{"OPTIONS /x" + asked}},
}

// oracleDiffers has the answers that differ from nginx' on purpose, by case and request.
var oracleDiffers = map[string]string{
	"prefix GET //foo":        `200 GET prefix.example /foo "" 0`,                // the backend gets the path that was matched
	"prefix GET /x/../foo/y":  `200 GET prefix.example /foo/y "" 0`,              // the same
	"cors OPTIONS /x" + asked: "204 Access-Control-Allow-Origin=* " + corsAnswer, // without the credentials that browsers refuse with "*"
}

const (
	asked      = " Origin: https://a.example | Access-Control-Request-Method: PUT"
	corsAnswer = "Access-Control-Allow-Methods=GET, PUT, POST, DELETE, PATCH, OPTIONS Access-Control-Allow-Headers=X-One, X-Two Access-Control-Max-Age=1728000"
)

// oracleHeaders are the headers of answers that are compared.
var oracleHeaders = []string{"Location", "Www-Authenticate", "Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Allow-Credentials", "Access-Control-Max-Age"}

// TestOracle: an Ingress with annotations gets the same answers as from nginx that is configured by hand to what the annotation
// means: status, headers, and the request that the backend gets.
func TestOracle(t *testing.T) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("no nginx [apt-get install nginx-light]")
	}
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s %s %q %d", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Forwarded-Prefix"), n)
	})
	theirs, ours := startNginx(t, program, backend), startIngresses(t, backend)
	for name, c := range oracle {
		for _, request := range c.requests {
			want, got := oracleAnswer(t, theirs, name, request), oracleAnswer(t, ours, name, request)
			if differs, ok := oracleDiffers[name+" "+request]; ok {
				if differs == want {
					t.Errorf("%s: %.80s: nginx answers the same", name, request)
				}
				want = differs
			}
			if want != got {
				t.Errorf("%s: %.80s: %s\nand nginx: %s", name, request, got, want)
			}
		}
	}
}

// startNginx starts nginx with all cases, and returns its address.
func startNginx(t *testing.T, program, backend string) string {
	t.Helper()
	dir := t.TempDir()
	users := filepath.Join(dir, "users")
	if err := os.WriteFile(users, []byte(oracleUsers), 0o644); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	var config strings.Builder
	fmt.Fprintf(&config, "daemon off; user root; worker_processes 1; pid %[1]s/pid; error_log %[1]s/log; events {}\nhttp { access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;\n"+
		"proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection \"\";\n", dir)
	for name, c := range oracle {
		text := fmt.Sprintf("%s server { listen %s; server_name %s.example; %s location @none { return 404; } }\n", c.outside, at, name, c.nginx)
		config.WriteString(strings.NewReplacer("BACKEND", backend, "USERS", users).Replace(text))
	}
	config.WriteString("}\n")
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-p", dir, "-e", filepath.Join(dir, "log"), "-c", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", at)
		if err == nil {
			c.Close()
			return at
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("nginx does not listen: %s", log)
		}
	}
}

// oracleUsers has the password "secret" of joe.
const oracleUsers = "joe:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"

// movedTable is a table whose port of Ingresses has another number.
type movedTable struct {
	*gateway.Table
	port uint16
}

func (m movedTable) Ports() []gateway.Port {
	return []gateway.Port{{Number: m.port, Proto: api.TCP, HTTP: true}}
}

func (m movedTable) Lookup(_ uint16, r gateway.Request) gateway.Decision {
	return m.Table.Lookup(gateway.IngressHTTP, r)
}

// startIngresses starts a server with all cases, and returns its address.
func startIngresses(t *testing.T, backend string) string {
	t.Helper()
	meta := func(name string) gateway.Meta { return gateway.Meta{Name: api.Name{Namespace: "shop", Name: name}} }
	c := gateway.NewCompiler(gateway.Settings{})
	c.Set(&gateway.IngressClass{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/ingress"})
	c.Set(&gateway.Service{Meta: meta("web"), Ports: []gateway.ServicePort{{Name: "http", Proto: api.TCP, Port: 80}}})
	c.Set(&gateway.Secret{Meta: meta("users"), Type: "Opaque", Data: map[string][]byte{"auth": []byte(oracleUsers)}})
	for name, o := range oracle {
		path := gateway.IngressPath{Path: o.path, Type: o.kind, Backend: gateway.IngressBackend{Service: "web", Port: 80}}
		if path.Path == "" {
			path.Path = "/"
		}
		if path.Type == "" {
			path.Type = "Prefix"
		}
		annotations := map[string]string{}
		for k, v := range o.annotations {
			annotations["nginx.ingress.kubernetes.io/"+k] = v
		}
		c.Set(&gateway.Ingress{Meta: meta(name), Class: "fairway", Annotations: annotations, Rules: []gateway.IngressRule{{Host: name + ".example", Paths: []gateway.IngressPath{path}}}})
	}
	b := start(t, Config{})
	table := movedTable{c.Table(), b.port}
	if err := b.srv.Apply(table, Endpoints{{Name: meta("web").Name, Port: "http"}: []service.Endpoint{{Addr: netip.MustParseAddrPort(backend)}}}); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", b.port)
}

// oracleAnswer sends a request, and writes the answer.
func oracleAnswer(t *testing.T, at, name, request string) string {
	t.Helper()
	request, body, _ := strings.Cut(request, " body ")
	method, rest, _ := strings.Cut(request, " ")
	path, headers, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+at+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = name + ".example"
	for header := range strings.SplitSeq(headers, " | ") {
		if key, value, ok := strings.Cut(header, ": "); ok {
			r.Header.Set(key, value)
		}
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text := resp.Status[:3]
	for _, h := range oracleHeaders {
		if v := resp.Header.Get(h); v != "" {
			text += " " + h + "=" + strings.TrimSuffix(v, `, charset="UTF-8"`) // of RFC 7617
		}
	}
	if resp.StatusCode == http.StatusOK {
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error()
		}
		text += " " + string(got)
	}
	return text
}
