package takeover

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestRelease: our mode goes on until another proxy's rules are there, then leaves in as many
// steps as it takes, and does not come back when those rules go for a moment.
func TestRelease(t *testing.T) {
	var log []string
	var there []Remain
	var failure error
	var logged strings.Builder
	ours := &slow{fake{name: "ours", log: &log}, 2}
	r := NewRelease(slog.New(slog.NewTextHandler(&logged, nil)), ours)
	r.find = func(context.Context) ([]Remain, error) {
		log = append(log, "find")
		return there, failure
	}
	sync := func() { _, _ = r.Sync(t.Context(), table()) }
	check := func() { _, _ = r.Check(t.Context()) }
	sync()
	check()
	expect(t, &log, "find", "ours sync", "find", "ours check")

	failure = errors.New("busy")
	check()
	expect(t, &log, "find", "ours check")

	there, failure = []Remain{{name: "canary"}}, nil
	check()
	expect(t, &log, "find", "ours check")

	there = []Remain{{name: "canary"}, {name: "table ip kube-proxy", serves: true}}
	sync()
	check()
	expect(t, &log, "find", "find")
	there = nil // a kube-proxy that was stopped at once
	check()
	expect(t, &log, "find", "ours check")

	there = []Remain{{name: "table ip kube-proxy", serves: true}}
	check()
	r.seen = r.seen.Add(-kubeProxyPause)
	check()
	there = nil
	sync()
	expect(t, &log, "find", "find", "ours drain", "ours drain")
	if err := r.Wait(t.Context()); !errors.Is(err, ErrReleased) {
		t.Errorf("Wait returns %v, want %v", err, ErrReleased)
	}
	sync()
	_, _ = r.Check(t.Context())
	expect(t, &log)
	for _, want := range []string{"busy", "table ip kube-proxy", "removed the rules of our mode"} {
		if strings.Count(logged.String(), want) != 1 {
			t.Errorf("%q is not logged once:\n%s", want, &logged)
		}
	}
}

// TestReleaseWaits: Wait ends with its context.
func TestReleaseWaits(t *testing.T) {
	var log []string
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewRelease(slog.New(slog.DiscardHandler), &fake{name: "ours", log: &log}).Wait(ctx); err != nil {
		t.Errorf("Wait of an agent that ends: %v", err)
	}
}

// TestWaitServes: nothing, a canary, rules that go again; only rules that stay are waited for.
func TestWaitServes(t *testing.T) {
	seen := []string{"", "canary", "rules", "", "rules", "rules", "rules"}
	calls := 0
	find := func(context.Context) ([]Remain, error) {
		what := seen[min(calls, len(seen)-1)]
		calls++
		if what == "" {
			return nil, nil
		}
		return []Remain{{name: what, serves: what == "rules"}}, nil
	}
	if err := waitServes(t.Context(), find, 20*time.Millisecond); err != nil || calls < 6 {
		t.Errorf("it returned %v after %d looks", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := func(context.Context) ([]Remain, error) { return nil, nil }
	if err := waitServes(ctx, never, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("it returned %v when nothing came", err)
	}
}
