// Package proxy is the loop that keeps a datapath equal to the API's objects.
//
//	Source ─ dirty names ─→ ┌──────────────────────────────────┐
//	                        │ one goroutine, one select        │
//	         retry timer ─→ │ Compile the dirty, build, Sync   │ ─→ Datapath
//	                        └──────────────────────────────────┘ ─→ Report, Metrics, Health
//	                                         └─→ Applied: the table that the datapath carries
//
// It hides when to act. It promises: nothing is programmed before every first list is
// in; a burst of changes becomes one pass; a pass that fails loses nothing, because the
// next one hands the whole table over again; what the kernel remembers of clients whose
// endpoint is gone ends, whatever failed in between; and no other goroutine ever sees the
// builder or the datapath.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// A Source is where the loop reads the API's objects as they are now. It is level-triggered: the
// channels only say that there is something to Take.
type Source interface {
	// Synced is closed when every first list is in.
	Synced() <-chan struct{}
	// Dirty receives when a Service or its endpoints changed, or what View returns.
	Dirty() <-chan struct{}
	// Take returns the names that changed since the last call.
	Take() []api.Name
	// Triggers returns, for the names of the last Take, when the endpoints changed in
	// the cluster, where the API has the time.
	Triggers() map[api.Name]time.Time
	Service(api.Name) (*service.Service, bool)
	Slices(api.Name) []*service.Slice
}

// Health gets the state of the loop; /healthz and /livez answer from it.
type Health interface {
	Queued() // a change waits
	Synced() // nothing waits any more
	Beat()   // the loop gets round, whether its passes succeed or not

	Failed(error) // a pass failed, and will be tried again
	Restored()    // another program had changed the rules; they are restored
}

// Config says what a Loop works with. Log, Source, Datapath, View, Health and Metrics
// are required.
type Config struct {
	Log      *slog.Logger
	Source   Source
	Datapath datapath.Datapath
	// HostPorts is where the loop reads what pods have on the node's own addresses; nil: no
	// pod has anything.
	HostPorts HostPorts
	// View returns what tables are compiled for, from the node's object as it is now.
	View func() service.Node
	// Viewed receives when View returns something else, which Source does not know. nil: never.
	Viewed <-chan struct{}
	// Flows ends the flows that a change made wrong. It is the Loop's, but for its Run. Nil:
	// none are ended.
	Flows *flow.Reconciler
	// Applied is where the loop publishes each table that the datapath carries; nil: it
	// has no readers.
	Applied *Applied
	// Report is called with the problems of a Service, or of a pod's host ports
	// (service.HostPod.Entry), after each compilation; none if it is fine. It must not block. nil: problems are not reported.
	Report func(api.Name, []api.Problem)
	// Event is told a problem that concerns the cluster, of the Service that stands for it. It
	// must not block. nil: such problems are only logged.
	Event   func(api.Name, api.Problem)
	Health  Health
	Metrics *Metrics
	// Differs is told what the kernel holds otherwise than it was written; empty: nothing any more. It
	// must not block. nil: that is only logged and measured.
	Differs func(string)
	// MinSync is the least time from the start of one pass to the start of the next;
	// 0: as soon as there is something to do.
	MinSync time.Duration
	// EmptyAfter is how long the first table must lack most of what the kernel carries, before
	// it is programmed; 0: it is at once.
	EmptyAfter time.Duration
	// MaxRetry bounds the time between tries that fail, also where one takes very long; 0: 30 s.
	MaxRetry time.Duration
}

// A Loop runs passes. Only the goroutine in Run touches it.
type Loop struct {
	cfg Config
	compiler
	first       firstTable // state of the checks before the first Sync
	retry       retry
	loggedDrift string // the difference that was logged last; empty: none
}

// New returns a Loop. It starts nothing.
func New(cfg Config) *Loop {
	if cfg.MaxRetry == 0 {
		cfg.MaxRetry = 30 * time.Second
	}
	if cfg.Applied == nil {
		cfg.Applied = &Applied{}
	}
	if cfg.HostPorts == nil {
		cfg.HostPorts = noHostPorts{}
	}
	adopted := cfg.Flows == nil
	if adopted {
		cfg.Flows = flow.New(flow.Config{Log: cfg.Log})
	}
	if cfg.Report == nil {
		cfg.Report = func(api.Name, []api.Problem) {}
	}
	if cfg.Differs == nil {
		cfg.Differs = func(string) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(api.Name, api.Problem) {}
	}
	l := &Loop{cfg: cfg, first: firstTable{adopted: adopted, brake: service.Brake{Bound: cfg.EmptyAfter}}}
	l.compiler = compiler{cfg: &l.cfg, table: &service.Table{}}
	return l
}

// Run works until ctx ends, and returns nil then: the rules stay in place.
func (l *Loop) Run(ctx context.Context) error {
	for synced := false; !synced; {
		select {
		case <-ctx.Done():
			return nil
		case reply := <-l.cfg.Metrics.carried.ask:
			reply <- nil // the datapath is not asked before its first Sync
		case <-l.cfg.Source.Synced():
			synced = true
		}
	}
	l.cfg.Health.Queued()
	timer := time.NewTimer(0) // the first pass needs no event
	defer timer.Stop()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	search := time.NewTimer(time.Hour) // for flows
	search.Stop()
	defer search.Stop()
	endFlows := func() {
		if again := l.cfg.Flows.Reconcile(ctx); again > 0 {
			search.Reset(again)
		}
	}
	for {
		l.cfg.Health.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-search.C:
			endFlows()
			continue
		case <-l.cfg.Flows.Wake():
			endFlows()
			continue
		case reply := <-l.cfg.Metrics.carried.ask:
			reply <- l.counts(ctx)
			continue
		case <-l.cfg.Source.Dirty():
		case <-l.cfg.HostPorts.Dirty():
		case <-l.cfg.Viewed:
		case <-timer.C:
		case <-check.C:
			if l.intact(ctx) {
				continue
			}
		}
		l.cfg.Health.Queued()
		if l.retry.waits(time.Now()) {
			continue // the timer is set, and that pass takes what is dirty
		}
		start := time.Now()
		if again := l.pass(ctx, start); again > 0 {
			timer.Reset(again)
		}
		endFlows()
		if !l.rest(ctx, l.cfg.MinSync-time.Since(start)) {
			return nil
		}
	}
}

// checkEvery is how often the kernel is asked whether another program has changed our
// rules. If none has, that costs one message.
const checkEvery = 2 * time.Second

// intact reports whether the rules are as we left them.
func (l *Loop) intact(ctx context.Context) bool {
	drift, err := l.cfg.Datapath.Check(ctx)
	if err != nil {
		l.cfg.Log.Debug("cannot check the rules", "err", err)
	}
	if drift.Rules || drift.Elements {
		l.cfg.Log.Warn("another program has changed our rules; restoring them", "rules", drift.Rules, "elements", drift.Elements)
		l.cfg.Health.Restored()
	}
	return !drift.Any()
}

// rest is sleep for a loop that lives meanwhile.
func (l *Loop) rest(ctx context.Context, d time.Duration) bool {
	for ; d > checkEvery; d -= checkEvery {
		l.cfg.Health.Beat()
		if !sleep(ctx, checkEvery) {
			return false
		}
	}
	return sleep(ctx, d)
}

// sleep waits for d, and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// pass makes the datapath equal to the Source. It returns the pause before the next try; 0 if the pass succeeded.
func (l *Loop) pass(ctx context.Context, start time.Time) time.Duration {
	l.build()
	l.adopt(ctx)
	if again := l.holdBack(start); again > 0 {
		return again
	}
	l.cfg.Flows.Wanted(l.table)
	stats, err := l.cfg.Datapath.Sync(ctx, l.table)
	if err != nil && ctx.Err() != nil {
		return 0 // the agent ends; its next start continues
	}
	l.cfg.Metrics.pass(start, stats, err)
	if err != nil {
		l.cfg.Health.Failed(err)
		return l.retry.failed(l.cfg.Log, err, start, time.Now(), l.cfg.MaxRetry)
	}
	if stats.Full {
		l.differs(stats.Differs)
	}
	l.cfg.Flows.Programmed()
	l.retry.succeeded(l.cfg.Log)
	l.cfg.Applied.publish(l.table)
	l.log(start, stats)
	l.cfg.Health.Synced()
	l.cfg.Metrics.programmed(l.triggers)
	l.triggers = l.triggers[:0]
	return 0
}

// differs tells what the kernel holds otherwise than it was written.
func (l *Loop) differs(text string) {
	if text == l.loggedDrift {
		return
	}
	l.loggedDrift = text
	differ := 0.0
	if text != "" {
		differ = 1
		l.cfg.Log.Error("the kernel repeatedly holds other rules than were written, will write them again", "what", text)
	} else {
		l.cfg.Log.Info("the kernel holds the rules as they were written")
	}
	l.cfg.Metrics.differ.Set(differ)
	l.cfg.Differs(text)
}

// counts asks the datapath what it carried.
func (l *Loop) counts(ctx context.Context) counts {
	all, err := l.cfg.Datapath.Counts(ctx)
	if err != nil {
		l.cfg.Log.Debug("cannot read the counters", "err", err)
		return nil
	}
	return all
}

func (l *Loop) log(start time.Time, s datapath.Stats) {
	level := slog.LevelDebug
	if s.Full {
		level = slog.LevelInfo // the first pass, and the one after a failure
	}
	if !l.cfg.Log.Enabled(context.Background(), level) {
		return
	}
	services, frontends := l.table.Len()
	l.cfg.Log.Log(context.Background(), level, "rules are up to date",
		"services", services, "frontends", frontends, "changed", s.Frontends,
		"added", s.Added, "deleted", s.Deleted, "took", fmt.Sprint(time.Since(start).Round(time.Microsecond)))
}
