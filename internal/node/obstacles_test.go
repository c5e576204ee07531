package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/testnet"
)

// TestObstacles: with Docker on the node, forwarding is dropped by a chain that is not ours. The
// log and an event say so, once, and the status as long as the chain is there.
func TestObstacles(t *testing.T) {
	n, log := newNamespace(t), &testnet.Log{}
	now, events := make(chan string, 10), make(chan string, 10)
	registry := prometheus.NewRegistry()
	o := &Obstacles{
		Log: slog.New(slog.NewTextHandler(log, nil)), Registry: registry,
		Event: func(reason, message string) { events <- reason + ": " + message },
		Now:   func(message string) { now <- message },
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.do(func() error { return o.Run(ctx) }) }()
	await := func(want string) {
		t.Helper()
		select {
		case got := <-now:
			if (want == "") != (got == "") || !strings.Contains(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after a minute nothing says %q", want)
		}
	}
	n.run(`nft 'add table ip filter; add chain ip filter OTHER { type filter hook forward priority 1; policy accept; }
		add chain ip filter INPUT { type filter hook input priority 0; policy drop; }
		add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'`)
	await("chain FORWARD of table ip filter drops")
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "fairway_forwarding_dropped" || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("metrics: %v, %v", families, err)
	}
	n.run(`nft 'delete table ip filter'`)
	await("")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if log.Count("chain FORWARD") != 1 || log.Count("level=WARN") != 1 {
		t.Errorf("the log:\n%v", log)
	}
	if len(events) != 1 || !strings.HasPrefix(<-events, reasonDropped+": chain FORWARD") {
		t.Errorf("%d more events", len(events))
	}
}
