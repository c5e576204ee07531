package top

import (
	"strings"
	"testing"
	"time"
)

// TestRoutes: the rates of two gateway pods are added, the mean time is that of all requests, and a pod that began again
// has no rates.
func TestRoutes(t *testing.T) {
	v := NewRoutes(time.Second, []string{"gw-1", "gw-2", "gw-3"})
	cart := RouteName{"shop/front", "HTTPRoute", "shop/cart"}
	admin := RouteName{"", "Ingress", "back/admin"}
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	v.Add("gw-1", &RouteSample{Run: 1, At: second(0), Routes: map[RouteName]RouteFigures{cart: {Requests: 10, Seconds: 1, Timed: 10}}})
	v.Add("gw-1", &RouteSample{Run: 1, At: second(2), Routes: map[RouteName]RouteFigures{
		cart: {Requests: 30, ClientErrors: 2, ServerErrors: 4, Bytes: 2000, Seconds: 1.2, Timed: 30}, admin: {Requests: 1, Timed: 1, Seconds: .5},
	}})
	v.Add("gw-2", &RouteSample{Run: 7, At: second(0), Routes: map[RouteName]RouteFigures{cart: {Requests: 500}}})
	v.Add("gw-2", &RouteSample{Run: 8, At: second(2), Routes: map[RouteName]RouteFigures{cart: {Requests: 600}}})
	v.Fail("gw-3", second(2), "no way\x1b[2J")
	table := func(q Query) string {
		var b strings.Builder
		if err := v.Frame(second(2), q).WriteTable(&b, false); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	want := `ROUTE                GATEWAY     REQUESTS/S  4XX/S  5XX/S     MS  BYTES/S
HTTPRoute/shop/cart  shop/front          10    1.0    2.0   10.0     1.0k
Ingress/back/admin   -                  0.5      0      0  500.0        0

2 of 3 gateway pods, 10 requests a second
gw-3: not counted: no way [2J
`
	if got := table(Query{}); got != want {
		t.Errorf("got\n%s", got)
	}
	v.Add("gw-2", &RouteSample{Run: 8, At: second(3), Routes: map[RouteName]RouteFigures{cart: {Requests: 700, Seconds: 1, Timed: 100}}})
	if got := table(Query{Namespace: "shop"}); !strings.Contains(got, "\nHTTPRoute/cart  shop/front         110    1.0    2.0  10.0     1.0k\n") {
		t.Errorf("two pods, one namespace:\n%s", got)
	}
	if got := table(Query{Namespace: "none"}); !strings.HasPrefix(got, "No route in namespace none") {
		t.Errorf("nothing:\n%s", got)
	}
	v.Add("gw-2", &RouteSample{Run: 8, At: second(4), Routes: map[RouteName]RouteFigures{{"", "HTTPRoute", "shop/\x1b"}: {}}})
	if got := v.Frame(second(4), Query{}).Notes; len(got) != 2 || strings.Contains(got[0], "\x1b") {
		t.Errorf("notes %q", got)
	}
}
