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

// TestLargeIngress: an Ingress with more hosts than the limit costs no more than the limit.
func TestLargeIngress(t *testing.T) {
	o := &gateway.Ingress{Class: "fairway"}
	o.Name = name("evil/large")
	for i := range 20_000 {
		host := fmt.Sprintf("host%d.com", i)
		o.Rules = append(o.Rules, gateway.IngressRule{Host: host, Paths: []gateway.IngressPath{{Path: "/", Type: "Prefix", Backend: ingressBackend("a:80")}}})
		o.TLS = append(o.TLS, gateway.IngressTLS{Hosts: []string{host}, Secret: "cert"})
	}
	x := parse(t, "ingressclass fairway\nservice evil/a 80\nsecret evil/cert\n")
	c := compiled(append(x.objects, o))
	for host, want := range map[string]string{"host0.com": "Ingress evil/large rule 0", "host999.com": "Ingress evil/large rule 999", "host1000.com": "404 no route"} {
		if got := requestAnswer(t, x, c.Table(), "http GET http://"+host+"/"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	if r := c.Reports()[o.Ref()]; len(r.Problems) == 0 || r.Problems[0].Reason != "TooManyPaths" {
		t.Errorf("problems %v", r.Problems)
	}
}

// TestTooManyListeners: the listeners of ListenerSets beyond the limit are refused, and do not take a port from others.
func TestTooManyListeners(t *testing.T) {
	var src strings.Builder
	src.WriteString("class fairway\ngateway infra/gw\n\tlisten own 80 HTTP own.com\n\tsets from=All\n")
	for i := range 40 {
		fmt.Fprintf(&src, "listenerset evil/s%d parent=infra/gw created=%d\n", i, i)
		for j := range 64 {
			fmt.Fprintf(&src, "\tlisten l%d 80 HTTP h%d-%d.com\n", j, i, j)
		}
	}
	c := compiled(parse(t, src.String()).objects)
	got := reportAnswer(c)
	if n := strings.Count(got, "Accepted=false/TooManyListeners"); n != 40*64+1-2048 {
		t.Errorf("%d listeners are refused, want %d", n, 40*64+1-2048)
	}
	if !strings.Contains(got, "listener own [HTTPRoute GRPCRoute] attached=0: Accepted Programmed ResolvedRefs") {
		t.Error("the Gateway's own listener is not served")
	}
}
