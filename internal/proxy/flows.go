package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// flows sees to it that the kernel ends what it remembers of clients whose endpoint is
// gone. It is Loop's, and as level-triggered as Sync: what is wrong follows from all
// tables that the kernel may have worked by since the last time that all was well.
type flows struct {
	cfg Config
	// last is the table that Sync was asked for last, whether it succeeded or not; nil:
	// none of ours yet.
	last *service.Table
	// synced says that the kernel works by last. Before that, a client's next packet would
	// bring a flow back.
	synced   bool
	stale    map[flowKey]service.Flow // that must still end
	reviewed bool
	rest     time.Time // no walk before
	clock    func() time.Time
}

// A flowKey identifies a kind of flows.
type flowKey struct {
	proto              service.Proto
	frontend, endpoint netip.AddrPort
	unserved           bool
}

func keyOf(f service.Flow) flowKey { return flowKey{f.Proto, f.Frontend, f.Endpoint, f.Unserved} }

// The kernel finds flows by walking its whole table (docs/decisions/0009): at most a
// twentieth of the time is spent on that, but nobody waits longer than a moment.
const (
	walkShare = 20
	longest   = 250 * time.Millisecond
	// walkAgain is the pause after a walk that failed.
	walkAgain = time.Second
)

// wanted takes note of what Sync is about to be asked for. A Sync that fails may have
// written some of it.
func (f *flows) wanted(ctx context.Context, table *service.Table) {
	if f.cfg.Forget == nil {
		return
	}
	if f.last == nil {
		f.adopt(ctx)
	}
	if len(f.stale) > 0 {
		// What is right again since. Who asks in between must not lose his connection.
		for _, s := range service.Stale(table, f.last) {
			delete(f.stale, keyOf(s))
		}
	}
	for _, s := range service.Stale(f.last, table) {
		f.stale[keyOf(s)] = s
	}
	f.last = table
}

// adopt reads what the kernel does before our first Sync: flows that became wrong while
// no agent ran are found like all others, by comparing tables.
func (f *flows) adopt(ctx context.Context) {
	held, err := f.cfg.Datapath.Adopt(ctx)
	if err != nil {
		held.Table = &service.Table{} // Sync will meet the same error, and report it
	}
	f.last = held.Table
}

// end ends the flows that are wrong, in one walk for all that became so meanwhile. It
// returns how long to wait if there will be more to do, 0 if not.
func (f *flows) end(ctx context.Context) time.Duration {
	if f.cfg.Forget == nil || !f.synced || len(f.stale) == 0 && f.reviewed {
		return 0
	}
	start := f.clock()
	if wait := f.rest.Sub(start); wait > 0 {
		return wait
	}
	ended, err := f.walk(ctx)
	now := f.clock()
	took := now.Sub(start)
	f.rest = now.Add(min((walkShare-1)*took, longest))
	f.cfg.Metrics.forgot(took, ended)
	if err != nil {
		f.cfg.Log.Warn("some clients may still send to endpoints that are gone", "err", err, "again", walkAgain)
		return walkAgain
	}
	return 0
}

// walk ends what is known to be wrong, and after the start what a killed agent did not
// come to.
func (f *flows) walk(ctx context.Context) (ended int, err error) {
	if len(f.stale) > 0 {
		if ended, err = f.cfg.Forget(ctx, slices.Collect(maps.Values(f.stale))); err != nil {
			return ended, err
		}
		clear(f.stale)
	}
	if f.reviewed {
		return ended, nil
	}
	n, err := f.cfg.Review(ctx, f.last)
	f.reviewed = err == nil
	return ended + n, err
}
