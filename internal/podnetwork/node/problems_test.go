package node

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestKeyPatience: a node without a key counts at once and is reported after a minute, once, and as long as it lasts.
func TestKeyPatience(t *testing.T) {
	log := &testnet.Log{}
	var present []string // the text of Config.Now after each report
	n := New(Config{Log: slog.New(slog.NewTextHandler(log, nil)), Now: func(text string) { present = append(present, text) }})
	missing := []plan.Problem{{Node: "b", Reason: plan.ReasonNoKey, Message: "node b has no key"}}
	now := time.Now()
	n.now = func() time.Time { return now }
	for i, want := range []int{0, 0, 1, 1} {
		n.report(missing)
		if got := log.Count("node b has no key"); got != want {
			t.Errorf("after %d half minutes: reported %d times, want %d", i, got, want)
		}
		now = now.Add(reportAfter[plan.ReasonNoKey] / 2)
	}
	n.report(append(missing, plan.Problem{Node: "c", Reason: plan.ReasonUnreachable, Message: "node c is away"}))
	n.report(nil)
	n.report(missing)
	if want := []string{"", "", "node b has no key", "node b has no key", "node b has no key (and 1 more: the agent's log has all)", "", ""}; !slices.Equal(present, want) {
		t.Errorf("the present problems are %q, want %q", present, want)
	}
	if got := log.Count("node b has no key"); got != 1 {
		t.Errorf("when it is new again: reported %d times", got)
	}
}
