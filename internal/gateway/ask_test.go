package gateway

import "testing"

// TestParseAsk: what a person writes as a request.
func TestParseAsk(t *testing.T) {
	a, err := ParseAsk("post https://Shop.Example./a//b/../c?q=1", []string{"x-one:  1"})
	if err != nil {
		t.Fatal(err)
	}
	header, _ := a.Header("X-One")
	query, _ := a.Query("q")
	if a.Method() != "POST" || a.Host() != "shop.example" || a.ServerName() != "shop.example" || a.Path() != "/a/c" || a.Port() != 443 || header != "1" || query != "1" {
		t.Errorf("%+v %s %s %q %q", a, a.Host(), a.Path(), header, query)
	}
	if a, err := ParseAsk("http://shop.example:8080", nil); err != nil || a.Port() != 8080 || a.TLS() || a.Path() != "/" {
		t.Errorf("%+v %v", a, err)
	}
	for _, bad := range []string{"", "GET /cart", "ftp://a.example/", "http://a.example/%2f", "GET"} {
		if _, err := ParseAsk(bad, nil); err == nil {
			t.Errorf("%q is a request", bad)
		}
	}
	if _, err := ParseAsk("http://a.example/", []string{"X-One"}); err == nil {
		t.Error("a header without a value")
	}
}
