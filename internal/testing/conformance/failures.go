package conformance

import (
	"errors"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// failures: a Sync that fails returns its Stats too, because kube-proxy's metrics distinguish a failed full pass from a
// failed change. The next Sync compares the whole table with the kernel.
func (s suite) failures(t testing.TB) {
	r := sixRig(t, s)
	injected := errors.New("injected fault")
	expect := func(when string, table *service.Table, fail error, full bool) (stats datapath.Stats) {
		t.Helper()
		r.dp.FailWrites(func() error { return fail })
		stats, err := r.syncStats(table)
		if !errors.Is(err, fail) || stats.Full != full {
			t.Errorf("%s: %+v, error %v; want full %v and error %v", when, stats, err, full, fail)
		}
		return stats
	}
	one, two := web("a", "10.96.0.1:80", api.TCP, 0, 1), web("b", "10.96.0.2:80", api.TCP, 2)
	expect("the first Sync, failing", tableOf(one), injected, true)
	expect("the first Sync again", tableOf(one), nil, true)
	expect("a change, failing", tableOf(one, two), injected, false)
	if stats := expect("after a failure", tableOf(one, two), nil, true); stats.Frontends != 1 {
		t.Errorf("after a failure %d frontends changed, want 1", stats.Frontends)
	}
	expect("a change", tableOf(two), nil, false)
	report(t, r.checkSynced(tableOf(two)))
}
