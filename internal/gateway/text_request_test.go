package gateway_test

import (
	"cmp"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A request is a request written down: "METHOD URL [Name: value]…".
type request struct {
	method, host, path, server string
	header                     map[string]string
	query                      url.Values
	client                     netip.Addr
}

func parseRequest(t testing.TB, s string) *request {
	t.Helper()
	r := &request{header: map[string]string{}, client: netip.MustParseAddr("192.0.2.1")}
	fields := strings.Split(s, " | ")
	method, raw, _ := strings.Cut(fields[0], " ")
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	r.method, r.host, r.query = method, strings.ToLower(u.Hostname()), u.Query()
	path, ok := gateway.Normalise(cmp.Or(u.EscapedPath(), "/"))
	if !ok {
		t.Fatalf("path of %s is refused", s)
	}
	r.path = path
	if u.Scheme == "https" {
		r.server = r.host
	}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, ": ")
		if k == "sni" {
			r.server = v
			continue
		}
		r.header[textproto.CanonicalMIMEHeaderKey(k)] = v
	}
	return r
}

func (r *request) Method() string     { return r.method }
func (r *request) Host() string       { return r.host }
func (r *request) Path() string       { return r.path }
func (r *request) ServerName() string { return r.server }
func (r *request) Client() netip.Addr { return r.client }
func (r *request) Header(name string) (string, bool) {
	v, ok := r.header[name]
	return v, ok
}
func (r *request) Query(name string) (string, bool) {
	v, ok := r.query[name]
	if !ok {
		return "", false
	}
	return v[0], true
}
