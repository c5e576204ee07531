package gateway_test

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

func TestNormalise(t *testing.T) {
	for raw, want := range map[string]string{
		"/": "/", "/a": "/a", "/a/": "/a/", "//a": "/a", "/a//b": "/a/b", "/a/./b": "/a/b", "/a/.": "/a/", "/a/..": "/", "/a/../b": "/b",
		"/..": "/", "/../../x": "/x", "/a/b/../": "/a/", "/%2e%2e/x": "/x", "/a/%2E%2e/b": "/b", "/%7euser": "/~user", "/a%c3%a9": "/a%C3%A9",
		"/.hidden": "/.hidden", "/a/...": "/a/...", "/a;b=c,d": "/a;b=c,d", "/a%20b": "/a%20b", "/a%3Fb": "/a%3Fb", "/%41": "/A",
		// Refused.
		"": "", "a": "", "*": "", "/a%2fb": "", "/a%2Fb": "", "/a%5cb": "", "/a%5Cb": "", "/a%00": "", "/a%": "", "/a%4": "", "/a%zz": "",
		"/a b": "", "/a\x00": "", "/a\\b": "", "/a?b": "", "/a#b": "", "/é": "", "http://x/": "",
	} {
		got, ok := gateway.Normalise(raw)
		if got != want || ok != (want != "") {
			t.Errorf("Normalise(%q) = %q %v, want %q", raw, got, ok, want)
		}
	}
}

// FuzzNormalise: a form is a fixed point, and means the same to Go's URL parser and to a cleaner of paths.
func FuzzNormalise(f *testing.F) {
	for _, s := range []string{"/a/../b", "/%2e%2e/", "//a/./b//", "/a%c3%a9/..", "/%41%zz", "/a/b/..", "/.%2e/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, ok := gateway.Normalise(raw)
		if !ok {
			return
		}
		if again, ok := gateway.Normalise(got); !ok || again != got {
			t.Fatalf("%q becomes %q, which becomes %q %v", raw, got, again, ok)
		}
		u, err := url.ParseRequestURI(got)
		if err != nil {
			t.Fatalf("%q becomes %q, which is no URI: %v", raw, got, err)
		}
		clean := path.Clean(u.Path)
		if strings.HasSuffix(u.Path, "/") && clean != "/" {
			clean += "/"
		}
		if clean != u.Path {
			t.Fatalf("%q becomes %q, which a backend reads as %q", raw, got, clean)
		}
		original, err := url.PathUnescape(raw)
		if err != nil {
			t.Fatalf("%q has an invalid escape and becomes %q", raw, got)
		}
		if want := path.Clean(original); want != path.Clean(u.Path) {
			t.Fatalf("%q means %q, and becomes %q", raw, want, u.Path)
		}
	})
}
