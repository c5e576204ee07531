package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// contexts: with a context that has ended, a datapath returns the context's error. It changes neither the kernel nor
// its own state, so the next Check still finds the changes of another program.
func (s suite) contexts(t testing.TB) {
	r := sixRig(t, s)
	table := tableOf(web("a", "10.96.0.1:80", api.TCP, 0, 1), web("b", "10.96.0.2:80", api.TCP, 2))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rules := func() string { return r.output("nft -s list ruleset", "ip rule", "ip -6 rule") } // without counters
	look := func(when string) {
		t.Helper()
		before := rules()
		for name, f := range map[string]func() error{
			"Check":   func() error { _, err := r.dp.Check(ended); return err },
			"Adopt":   func() error { _, err := r.dp.Adopt(ended); return err },
			"Explain": func() error { _, err := r.dp.Explain(ended, table.Sorted()[0].Key()); return err },
		} {
			if err := r.node.Do(f); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: error %v, want that of the context", when, name, err)
			}
		}
		if after := rules(); after != before {
			t.Errorf("%s: the rules are others:\n%s\nbefore:\n%s", when, after, before)
		}
	}
	report(t, r.sync(table))
	look("after a Sync")
	report(t, r.checkSynced(table))
	r.output("nft flush ruleset")
	look("after another program flushed the rules")
	report(t, r.node.Do(func() error {
		drift, err := r.dp.Check(t.Context())
		if err == nil && !drift.Any() {
			err = errors.New("the Check after one whose context had ended finds the rules intact")
		}
		return err
	}))
	report(t, r.sync(table))
	report(t, r.checkSynced(table))
}
