package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/fairway-net/fairway/internal/gateway"
)

// gather returns all metrics of a server.
func gather(t testing.TB, s *Server) []*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(s); err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// value returns the value of a counter, or the count of a histogram, whose labels have these values.
func value(t testing.TB, s *Server, name string, labels ...string) float64 {
	t.Helper()
	for _, family := range gather(t, s) {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			var has []string
			for _, l := range m.Label {
				has = append(has, l.GetValue())
			}
			if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(has, l) }) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// await waits until a metric has a value: a request is counted after its answer was sent.
func await(t testing.TB, s *Server, want float64, name string, labels ...string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		got := value(t, s, name, labels...)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s%q is %v, want %v", name, labels, got, want)
		}
	}
}

// TestMetrics: requests are counted by listener and route and by class of status, and the names follow Prometheus' rules.
func TestMetrics(t *testing.T) {
	bothEngines(t, func(t *testing.T, version int) {
		b := start(t, Config{})
		b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
		b.rule("/none", &gateway.Rule{Backends: []gateway.Backend{b.backend("none")}})
		for range 3 {
			b.ask(version, "GET / HTTP/1.1")
		}
		b.ask(version, "GET /none HTTP/1.1")
		b.ask(version, "GET /a%2fb HTTP/1.1")
		const route = "HTTPRoute/shop/cart"
		for _, c := range []struct {
			name   string
			labels []string
			want   float64
		}{
			{"fairway_gateway_requests_total", []string{"web", route, "2xx"}, 3},
			{"fairway_gateway_requests_total", []string{"web", route, "5xx"}, 1},
			{"fairway_gateway_request_duration_seconds", []string{"web", route}, 4},
			{"fairway_gateway_bad_requests_total", []string{"400"}, 1},
		} {
			await(t, b.srv, c.want, c.name, c.labels...)
		}
		if value(t, b.srv, "fairway_gateway_sent_bytes_total", route) < 100 {
			t.Error("the bodies are not counted")
		}
		problems, err := promlint.NewWithMetricFamilies(gather(t, b.srv)).Lint()
		if err != nil || len(problems) > 0 {
			t.Error(problems, err)
		}
	})
}

// series counts the time series.
func series(t testing.TB, s *Server) (n int) {
	for _, family := range gather(t, s) {
		n += len(family.Metric)
	}
	return n
}

// TestMetricsAreBounded: no client makes a time series, and a rule that is gone takes its series with it.
func TestMetricsAreBounded(t *testing.T) {
	b := start(t, Config{})
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{b.backend("cart", serveHTTP(t, echo))}})
	ask := func(i int) {
		b.ask(1, fmt.Sprintf("M%d /x%d?y=%d HTTP/1.1\nHost: h%d.example\nUser-Agent: u%d", i, i, i, i, i))
		b.ask(1, fmt.Sprintf("GET /x%d%%2f HTTP/1.1", i))
		b.raw(fmt.Sprintf("GET / HTTP/1.%d\r\nHost: a\r\n\r\n", i+2))
	}
	ask(0)
	const all = "fairway_gateway_requests_total"
	await(t, b.srv, 1, all, "HTTPRoute/shop/cart", "2xx")
	before := series(t, b.srv)
	for i := range 50 {
		ask(i)
	}
	await(t, b.srv, 51, all, "HTTPRoute/shop/cart", "2xx")
	if after := series(t, b.srv); after != before {
		t.Errorf("%d series before and %d after requests with other hosts, paths and methods", before, after)
	}
	for i := range 50 { // a rule that changes keeps its series
		b.table.rules[0].rule = &gateway.Rule{Backends: b.table.rules[0].rule.Backends, Route: b.table.rules[0].rule.Route, Index: i}
		b.apply()
		b.ask(1, "GET / HTTP/1.1")
	}
	await(t, b.srv, 101, all, "HTTPRoute/shop/cart", "2xx")
	if after := series(t, b.srv); after != before {
		t.Errorf("%d series before and %d after changes of the rule", before, after)
	}
	b.srv.clean(time.Now().Add(2 * ruleIdle))
	for _, family := range gather(t, b.srv) {
		for _, m := range family.Metric {
			if strings.Contains(m.String(), "shop/cart") {
				t.Fatalf("a rule without requests keeps %s", family.GetName())
			}
		}
	}
}

// TestMetricsOfBusyRoutes: a route keeps its metrics while one of its rules has requests.
func TestMetricsOfBusyRoutes(t *testing.T) {
	b := start(t, Config{})
	back := b.backend("cart", serveHTTP(t, echo))
	b.rule("/", &gateway.Rule{Backends: []gateway.Backend{back}})
	idle := b.rule("/idle", &gateway.Rule{Backends: []gateway.Backend{back}})
	b.ask(1, "GET / HTTP/1.1")
	b.ask(1, "GET /idle HTTP/1.1")
	await(t, b.srv, 2, "fairway_gateway_requests_total", "HTTPRoute/shop/cart", "2xx")
	b.srv.ruleOf(idle, time.Now()).used.Store(time.Now().Add(-2 * ruleIdle).Unix())
	b.srv.clean(time.Now())
	b.ask(1, "GET / HTTP/1.1")
	await(t, b.srv, 3, "fairway_gateway_requests_total", "HTTPRoute/shop/cart", "2xx")
}
