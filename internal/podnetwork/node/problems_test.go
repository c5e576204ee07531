package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestKeyPatience: a node without a key counts at once and is reported after a minute, once.
func TestKeyPatience(t *testing.T) {
	log := &testnet.Log{}
	n := New(Config{Log: slog.New(slog.NewTextHandler(log, nil))})
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
	n.report(nil)
	n.report(missing)
	if got := log.Count("node b has no key"); got != 1 {
		t.Errorf("when it is new again: reported %d times", got)
	}
}
