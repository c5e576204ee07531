package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

// TestLimits: a namespace that exceeds the limits of a host loses its own weakest matches, and its route says so. Another
// namespace on the host, and the namespace's other hosts, lose nothing.
func TestLimits(t *testing.T) {
	var src strings.Builder
	src.WriteString("class fairway\nservice evil/a 8080\nservice good/a 8080\ngateway infra/gw\n\tlisten http 80 HTTP from=All\n")
	for i := range 15 {
		fmt.Fprintf(&src, "httproute evil/regex%d parents=infra/gw hosts=shared.com created=%d\n", i, i)
		for j := range 10 {
			fmt.Fprintf(&src, "\trule regex=/evil%d/%d/.* to=a\n", i, j)
		}
	}
	src.WriteString("httproute evil/other parents=infra/gw hosts=other.com created=90\n\trule regex=/x.* to=a\n")
	src.WriteString("httproute good/route parents=infra/gw hosts=shared.com created=99\n\trule regex=/good.* to=a\n\trule path=/ to=a\n")
	x := parse(t, src.String())
	c := compiled(x.objects)
	for q, want := range map[string]string{
		"GET http://shared.com/evil0/0/x":  "HTTPRoute evil/regex0 rule 0",
		"GET http://shared.com/evil14/0/x": "HTTPRoute evil/regex14 rule 0", // longer patterns come first
		"GET http://shared.com/evil9/9/x":  "HTTPRoute good/route rule 1",
		"GET http://shared.com/good":       "HTTPRoute good/route rule 0",
		"GET http://other.com/x":           "HTTPRoute evil/other rule 0",
	} {
		if got := requestAnswer(t, x, c.Table(), "infra/gw:80 "+q); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s: %s, want %s", q, got, want)
		}
	}
	over := 0
	for ref, r := range c.Reports() {
		for _, p := range r.Problems {
			if ref.Namespace != "evil" || p.Reason != "TooManyMatches" {
				t.Errorf("%v: %v", ref, p)
			}
			over++
		}
	}
	if over != 5 {
		t.Errorf("%d routes say that they exceed the limit, want 5", over)
	}
	for _, o := range x.objects {
		if r, ok := o.(*gateway.HTTPRoute); ok && strings.HasPrefix(r.Name.Name, "regex") && r.Created < 5 {
			c.Delete(r.Ref())
		}
	}
	c.Table()
	for ref, r := range c.Reports() {
		if len(r.Problems) > 0 {
			t.Errorf("%v still exceeds the limit: %v", ref, r.Problems)
		}
	}
}
