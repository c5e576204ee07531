package ingress

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// serve starts a controller for clear and for TLS connections on loopback.
func serve(t *testing.T, handler http.HandlerFunc) Address {
	t.Helper()
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	clear := netip.MustParseAddrPort(plain.Listener.Addr().String())
	return Address{Addr: clear.Addr(), HTTP: clear.Port(), TLS: netip.MustParseAddrPort(secure.Listener.Addr().String()).Port()}
}

// TestCompare holds that Compare finds each kind of difference, and none between equal answers. Bodies that differ with
// each request are not compared.
func TestCompare(t *testing.T) {
	answer := func(path, host string, isNew bool) (code int, header, value, body string) {
		switch {
		case path == "/status" && isNew:
			return 404, "", "", "same"
		case path == "/location":
			return 301, "Location", map[bool]string{true: "https://new.example/", false: "https://old.example/"}[isNew], ""
		case path == "/body":
			return 200, "", "", fmt.Sprint(isNew)
		case path == "/cookie" && isNew:
			return 200, "Set-Cookie", "route=1", "same"
		}
		return 200, "X-Host", host, "same"
	}
	handler := func(isNew bool) http.HandlerFunc {
		asked := map[bool]*atomic.Int64{false: {}, true: {}} // with TLS or without
		return func(w http.ResponseWriter, r *http.Request) {
			code, header, value, body := answer(r.URL.Path, r.Host, isNew)
			if header != "" {
				w.Header().Set(header, value)
			}
			switch r.URL.Path {
			case "/random":
				body = r.RemoteAddr
			case "/pods": // the old controller asks one pod twice, and then the other one
				body = "b"
				if n := asked[r.TLS != nil].Add(1); !isNew && n <= 2 {
					body = "a"
				}
			}
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}
	}
	var all []Request
	for _, path := range []string{"/equal", "/status", "/location", "/body", "/cookie", "/random", "/pods"} {
		all = append(all, Request{Host: "a.example", Path: path}, Request{TLS: true, Host: "a.example", Path: path})
	}
	report, err := Compare(t.Context(), serve(t, handler(false)), serve(t, handler(true)), all)
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, d := range report.Differences {
		parts = append(parts, d.Request+" "+d.Part)
	}
	want := []string{"http://a.example/status status", "https://a.example/status status", "http://a.example/location Location", "https://a.example/location Location",
		"http://a.example/body body", "https://a.example/body body", "http://a.example/cookie cookies", "https://a.example/cookie cookies"}
	if !slices.Equal(parts, want) || report.Requests != len(all) {
		t.Errorf("got %q, want %q", parts, want)
	}
	var out bytes.Buffer
	if err := report.WriteTable(&out, false); err != nil || !strings.HasSuffix(out.String(), "requests: 14, differences: 8\n") {
		t.Errorf("%v: %s", err, &out)
	}
}

// TestCompareUnreachable holds that a controller which does not answer is a difference in status, and that a canceled
// context is an error.
func TestCompareUnreachable(t *testing.T) {
	alive := serve(t, func(http.ResponseWriter, *http.Request) {})
	dead := alive
	closed := httptest.NewServer(nil)
	dead.HTTP = netip.MustParseAddrPort(closed.Listener.Addr().String()).Port()
	closed.Close()
	report, err := Compare(t.Context(), alive, dead, []Request{{Host: "a.example", Path: "/"}})
	if err != nil || len(report.Differences) == 0 || report.Differences[0].New != "connect: connection refused" {
		t.Errorf("%+v, %v", report, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ctx, alive, alive, []Request{{Host: "a.example", Path: "/"}}); err == nil {
		t.Error("no error of a canceled context")
	}
}

// TestRequests holds which requests a path makes.
func TestRequests(t *testing.T) {
	kind := networkingv1.PathTypePrefix
	path := func(p string) networkingv1.HTTPIngressPath {
		return networkingv1.HTTPIngressPath{Path: p, PathType: &kind}
	}
	g := networkingv1.Ingress{Spec: networkingv1.IngressSpec{
		TLS: []networkingv1.IngressTLS{{Hosts: []string{"b.example"}, SecretName: "b"}},
		Rules: []networkingv1.IngressRule{
			{Host: "*.a.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{path("/api(/|$)(.*)")}}}},
			{Host: "b.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{path("/")}}}},
		},
	}}
	var got []string
	for _, r := range Requests([]networkingv1.Ingress{g}) {
		got = append(got, r.String())
	}
	want := []string{
		"http://b.example/", "https://b.example/", "http://b.example" + noPath, "https://b.example" + noPath,
		"http://b.example/x", "https://b.example/x", "http://b.example/x/y?q=1", "https://b.example/x/y?q=1",
		"http://fairway-check.a.example/", "http://fairway-check.a.example//api", "http://fairway-check.a.example/API",
		"http://fairway-check.a.example/api", "http://fairway-check.a.example/api%2fx", "http://fairway-check.a.example/api/",
		"http://fairway-check.a.example/api/../x", "http://fairway-check.a.example/api/x", "http://fairway-check.a.example/api/x/y?q=1",
		"http://fairway-check.a.example/apix", "http://fairway-check.a.example" + noPath,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
