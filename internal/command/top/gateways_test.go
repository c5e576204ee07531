package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/fairway-net/fairway/internal/flow/top"
)

// gatewayMetrics are a gateway pod's metrics after n requests, which two listeners had.
func gatewayMetrics(n int) []byte {
	return fmt.Appendf(nil, `# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE fairway_gateway_requests_total counter
fairway_gateway_requests_total{gateway="shop/front",listener="http",route="HTTPRoute/shop/cart",code="2xx"} %[1]d
fairway_gateway_requests_total{gateway="shop/front",listener="https",route="HTTPRoute/shop/cart",code="5xx"} %[1]d
fairway_gateway_requests_total{gateway="shop/front",listener="https",route="HTTPRoute/shop/cart",code="4xx"} 0
# TYPE fairway_gateway_sent_bytes_total counter
fairway_gateway_sent_bytes_total{gateway="shop/front",listener="http",route="HTTPRoute/shop/cart"} %[2]d
# TYPE fairway_gateway_request_duration_seconds histogram
fairway_gateway_request_duration_seconds_bucket{gateway="shop/front",listener="http",route="HTTPRoute/shop/cart",le="+Inf"} %[1]d
fairway_gateway_request_duration_seconds_sum{gateway="shop/front",listener="http",route="HTTPRoute/shop/cart"} 2
fairway_gateway_request_duration_seconds_count{gateway="shop/front",listener="http",route="HTTPRoute/shop/cart"} %[1]d
`, n, n*100)
}

// TestParseRoutes: the figures of a route are added up over its listeners.
func TestParseRoutes(t *testing.T) {
	now := time.Now()
	s, err := parseRoutes(gatewayMetrics(10), now)
	if err != nil {
		t.Fatal(err)
	}
	want := top.RouteFigures{Requests: 20, ServerErrors: 10, Bytes: 1000, Seconds: 2, Timed: 10}
	if got := s.Routes[top.RouteName{Gateway: "shop/front", Kind: "HTTPRoute", Name: "shop/cart"}]; len(s.Routes) != 1 || got != want || s.Run != 1.7e12 || s.At != now {
		t.Errorf("%+v", s)
	}
	if _, err := parseRoutes([]byte("<html>"), now); err == nil {
		t.Error("a page is taken for metrics")
	}
}

// TestGateways: a pod's metrics become rates on the screen, and a pod that fails is named.
func TestGateways(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := newAsker(nil, 50*time.Millisecond)
	n := 0
	a.talk = func(ctx context.Context, pod string) error {
		return a.poll(ctx, pod, func(context.Context) ([]byte, error) {
			if pod == "gw-2" {
				return nil, errors.New("no way")
			}
			n += 10
			return gatewayMetrics(n), nil
		})
	}
	go a.run(ctx, []string{"gw-1", "gw-2"})
	s := &session{asker: a, routes: top.NewRoutes(a.interval, []string{"gw-1", "gw-2"}), query: top.Query{Namespace: "shop", Sort: top.ByConnections}}
	m := &screen{session: s, frame: s.frame(time.Now())}
	m.Update(tea.WindowSizeMsg{Width: 90, Height: 10})
	for range 4 {
		m.Update(<-a.answers)
	}
	m.Update(tick(time.Now()))
	m.Update(press("enter")) // a route has no endpoints
	got := strings.Join(m.lines(), "\n")
	for _, want := range []string{"1 of 2 gateway pods, ", "HTTPRoute/cart  shop/front ", "gw-2: not counted: no way", "by requests", "/ filter"} {
		if !strings.Contains(got, want) {
			t.Errorf("the screen lacks %q:\n%s", want, got)
		}
	}
	if r := m.frame.routes.Rows[0]; r.RequestsPerSecond <= 0 || r.ServerErrorsPerSecond*2 < r.RequestsPerSecond*0.99 || !m.frame.troubled(0) {
		t.Errorf("%+v", r)
	}
}
