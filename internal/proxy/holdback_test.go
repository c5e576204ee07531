package proxy

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestRestartBesideAnEmptyAPI: a starting agent finds far fewer objects at the API server than the kernel carries. It
// leaves the kernel alone until this has lasted for a while.
func TestRestartBesideAnEmptyAPI(t *testing.T) {
	const bound = time.Minute
	start := time.Now()
	log := slog.New(slog.DiscardHandler)
	var events []string
	var registry *prometheus.Registry
	agent := func(a *fakeSource) (*Loop, func() int) {
		registry = prometheus.NewRegistry()
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(dp.Close)
		loop := New(Config{
			Log: log, Source: a, Datapath: dp, Facts: func() service.Facts { return service.Facts{Node: service.Node{Name: "n"}} }, EmptyAfter: bound,
			Flows: flow.New(flow.Config{Log: log}), Health: newHealth(),
			Metrics: NewMetrics(MetricsConfig{Registry: registry, Mode: "nftables"}),
			Event:   func(_ api.Name, p api.Problem) { events = append(events, p.Reason) },
		})
		return loop, func() int {
			held, err := dp.Adopt(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, n := held.Table.Len()
			return n
		}
	}
	err := testnet.NewNamespace(t, "node").Do(func() error {
		first, _ := agent(apiWith(20))
		if again := first.pass(t.Context(), start); again != 0 {
			t.Fatalf("the first agent waits %v on an empty node", again)
		}
		a := apiWith(2)
		second, carried := agent(a)
		metrics := registry
		for _, after := range []time.Duration{0, bound / 2} {
			if again := second.pass(t.Context(), start.Add(after)); again != lookAgain || carried() != 20 {
				t.Fatalf("after %v: waits %v, the kernel carries %d", after, again, carried())
			}
		}
		wantKept(t, metrics, 18)
		second.pass(t.Context(), start.Add(bound))
		wantKept(t, metrics, 0)
		if len(events) != 1 || events[0] != "ListLostObjects" {
			t.Errorf("events %q, want one", events)
		}
		if n := carried(); n != 2 {
			t.Errorf("after %v the kernel carries %d frontends, want 2", bound, n)
		}
		third, carried := agent(apiWith(0))
		if third.pass(t.Context(), start); carried() != 0 {
			t.Errorf("of few frontends all can go; the kernel carries %d", carried())
		}
		fourth, _ := agent(apiWith(20))
		fourth.pass(t.Context(), start)
		fifth, carried := agent(a)
		fifth.pass(t.Context(), start)
		for i := range 20 {
			a.set(i)
		}
		if again := fifth.pass(t.Context(), start.Add(time.Second)); again != 0 || carried() != 20 {
			t.Errorf("all is there again: waits %v, carries %d", again, carried())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// apiWith returns an API with the given number of Services.
func apiWith(services int) *fakeSource {
	a := newAPI()
	for i := range services {
		a.set(i)
	}
	return a
}

// wantKept checks the metric of kept frontends.
func wantKept(t *testing.T, registry *prometheus.Registry, want float64) {
	t.Helper()
	families, err := registry.Gather()
	for _, f := range families {
		if f.GetName() == "fairway_kept_frontends" && f.GetMetric()[0].GetGauge().GetValue() == want {
			return
		}
	}
	t.Errorf("the metric of kept frontends is not %v (%v)", want, err)
}
