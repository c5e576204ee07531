package proxy

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
)

// TestRestartBesideAnEmptyAPI: an agent that starts, and finds far less at the API server
// than the kernel carries, leaves the kernel alone until that has been so for a while.
func TestRestartBesideAnEmptyAPI(t *testing.T) {
	const bound = time.Minute
	start := time.Now()
	log := slog.New(slog.DiscardHandler)
	agent := func(a *api) (*Loop, func() int) {
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(dp.Close)
		loop := New(Config{
			Log: log, Source: a, Datapath: dp, View: func() service.Node { return service.Node{Name: "n"} }, EmptyAfter: bound,
			Flows: flow.New(flow.Config{Log: log}), Health: newHealth(),
			Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
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
	with := func(services int) *api {
		a := newAPI()
		for i := range services {
			a.set(i)
		}
		return a
	}
	err := testnet.NewNamespace(t, "node").Do(func() error {
		first, _ := agent(with(20))
		if again := first.pass(t.Context(), start); again != 0 {
			t.Fatalf("the first agent waits %v on an empty node", again)
		}
		a := with(2)
		second, carried := agent(a)
		for _, after := range []time.Duration{0, bound / 2} {
			if again := second.pass(t.Context(), start.Add(after)); again != doubtPause || carried() != 20 {
				t.Fatalf("after %v: waits %v, the kernel carries %d", after, again, carried())
			}
		}
		second.pass(t.Context(), start.Add(bound))
		if n := carried(); n != 2 {
			t.Errorf("after %v the kernel carries %d frontends, want 2", bound, n)
		}
		third, carried := agent(with(0))
		if third.pass(t.Context(), start); carried() != 0 {
			t.Errorf("of few frontends all can go; the kernel carries %d", carried())
		}
		fourth, _ := agent(with(20))
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
