// Package proxy is the loop that keeps a datapath equal to the API's objects.
//
//	Source ─ dirty names ─→ ┌──────────────────────────────────────┐
//	                        │ one goroutine, one select            │
//	         retry timer ─→ │ compile the dirty names, build, Sync │ ─→ Datapath
//	                        └──────────────────────────────────────┘ ─→ Report, Metrics, Health
//	                                         └─→ Applied: the table that the datapath carries
//
// The package promises:
//   - It writes nothing before all first lists are complete.
//   - A burst of changes becomes one pass. One pass carries everything that changed.
//   - A failed pass loses nothing, because the next pass hands over the whole table again.
//   - Flows to endpoints that went away are ended, whatever failed in between.
//   - No other goroutine uses the builder or the datapath.
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

// A Source has the API's current objects. It is level-triggered: the channels only say that Take has new names.
type Source interface {
	// Synced is closed when all first lists are complete.
	Synced() <-chan struct{}
	// Dirty receives when a Service, its endpoints, or the result of Config.Facts changed.
	Dirty() <-chan struct{}
	// Take returns the names that changed since the last call.
	Take() []api.Name
	// Triggers returns the times of the endpoints' changes in the cluster for the names of the last Take, if the API has
	// the time.
	Triggers() map[api.Name]time.Time
	Service(api.Name) (*service.Service, bool)
	Slices(api.Name) []*service.Slice
}

// Health gets the state of the loop. /healthz and /livez report it.
type Health interface {
	Queued() // a change is pending
	Synced() // no change is pending
	Beat()   // the loop is alive, whether its passes succeed or not

	Failed(error) // a pass failed, and the loop will try again
	Restored()    // another program had changed the rules, and the loop restores them
}

// Config configures a Loop. Log, Source, Datapath, Facts, Health and Metrics are required.
type Config struct {
	Log      *slog.Logger
	Source   Source
	Datapath datapath.Datapath
	// HostPorts has the ports of pods on the node's own addresses; nil: no pod has one.
	HostPorts HostPorts
	// Facts returns the current facts, with which tables are compiled.
	Facts func() service.Facts
	// FactsChanged receives when the result of Facts changed for a reason that Source does not know; nil: never.
	FactsChanged <-chan struct{}
	// TablesChanged receives when another program may have changed the kernel's tables; nil: only a timer finds changes.
	TablesChanged <-chan struct{}
	// Flows ends flows that a change made wrong. The Loop calls all of its methods, except Run. Nil: no flow is ended.
	Flows *flow.Reconciler
	// Applied gets each table that the datapath carries; nil: nobody reads it.
	Applied *Applied
	// Report gets the problems of a Service, or of a pod's host ports (service.HostPod.Entry), after each compilation,
	// also if there is none. It must not block. Nil: problems are not reported.
	Report func(api.Name, []api.Problem)
	// Event gets a problem of the whole cluster, with the Service that stands for the cluster. It must not block. Nil:
	// the problem is only logged.
	Event   func(api.Name, api.Problem)
	Health  Health
	Metrics *Metrics
	// Differs gets a description of rules that the kernel holds in another form than written; empty: no difference any
	// more. It must not block. Nil: the difference is only logged and counted.
	Differs func(string)
	// MinSync is the shortest time between the starts of two passes; 0: no limit.
	MinSync time.Duration
	// EmptyAfter is the time for which a first table that lacks most of the kernel's frontends is held back; 0: it is
	// written at once.
	EmptyAfter time.Duration
	// MaxRetry is the longest pause after a failed pass, even if the pass took very long; 0: 30 s.
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

// New returns a Loop that has not started.
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
	l := &Loop{cfg: cfg, first: firstTable{adopted: adopted, brake: api.Brake{Bound: cfg.EmptyAfter}}}
	l.compiler = compiler{cfg: &l.cfg, table: &service.Table{}}
	return l
}

// Run works until ctx ends, and then returns nil. The rules stay in place.
func (l *Loop) Run(ctx context.Context) error {
	for synced := false; !synced; {
		select {
		case <-ctx.Done():
			return nil
		case reply := <-l.cfg.Metrics.carried.ask:
			reply <- nil // the datapath counts nothing before its first Sync
		case <-l.cfg.Source.Synced():
			synced = true
		}
	}
	l.readEjected(ctx)
	l.cfg.Health.Queued()
	timer := time.NewTimer(0) // the first pass needs no event
	defer timer.Stop()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	search := time.NewTimer(time.Hour) // next search for wrong flows
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
		case <-l.cfg.FactsChanged:
		case <-timer.C:
		case <-check.C:
			if changed := l.readEjected(ctx); l.intact(ctx) && !changed {
				continue
			}
		case <-l.cfg.TablesChanged:
			if l.intact(ctx) {
				continue
			}
		}
		l.cfg.Health.Queued()
		if l.retry.waits(time.Now()) {
			continue // the timer is set, and its pass takes the dirty names
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

// checkEvery is the interval at which the loop asks the kernel whether another program has changed the rules. Without
// changes, the check costs one message. It is a variable for tests.
var checkEvery = 2 * time.Second

// intact reports whether the kernel has the rules of the last pass.
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

// rest sleeps like sleep, and reports to Health that the loop is alive.
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
		return 0 // the agent ends, and its next start continues
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

// differs reports rules that the kernel holds in another form than written.
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

// counts reads the counters of the datapath.
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
