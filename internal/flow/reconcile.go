package flow

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// Config says what a Reconciler works with. Log is required.
type Config struct {
	Log *slog.Logger
	// Enders end flows, each those of its memory. None: no flow is ended.
	Enders []Ender
	// Pods finds out whether a pod is gone. Nil: that is never known, so that unconfirmed
	// flows go on.
	Pods PodLookup
	// Observe is called after each search with the time it took and the flows it ended. Nil:
	// it is not called.
	Observe func(took time.Duration, ended int)
}

// A Reconciler ends the flows that tables made wrong. All methods but Run and Wake belong to
// the goroutine that programs the tables.
type Reconciler struct {
	cfg Config
	// last is the table that was wanted last, whether it was programmed or not; nil: none yet.
	last *service.Table
	// programmed says that the rules are those of last. Before that, a client's next packet
	// would bring a flow back.
	programmed bool
	stale      map[Key]Flow // must still end
	audited    bool
	pauseUntil time.Time // no search before
	clock      func() time.Time
	confirmer  *confirmer
}

// The kernel finds flows by searching its whole table (docs/decisions/0009): at most a
// twentieth of the time is spent on that, but no flow waits longer than longestPause.
const (
	searchShare  = 20
	longestPause = 250 * time.Millisecond
	// failurePause is the pause after a search that failed.
	failurePause = time.Second
)

// New returns a Reconciler that knows no table. It starts nothing.
func New(cfg Config) *Reconciler {
	if cfg.Observe == nil {
		cfg.Observe = func(time.Duration, int) {}
	}
	return &Reconciler{cfg: cfg, stale: map[Key]Flow{}, clock: time.Now, confirmer: newConfirmer(cfg.Log, cfg.Pods)}
}

// Run asks whether pods are gone, until ctx ends, and returns nil then.
func (r *Reconciler) Run(ctx context.Context) error { return r.confirmer.run(ctx) }

// Wake receives when Reconcile should be called, because a pod turned out to be gone. Any
// goroutine may call it.
func (r *Reconciler) Wake() <-chan struct{} { return r.confirmer.wake }

// Adopted tells what the rules did before the first Wanted, so that flows that became wrong
// while no agent ran are found like all others, by comparing tables. Without it they did
// nothing.
func (r *Reconciler) Adopted(held *service.Table) {
	if r.last == nil {
		r.last = held
	}
}

// Wanted tells which table is about to be programmed. If that fails, some of it may be.
func (r *Reconciler) Wanted(table *service.Table) {
	r.programmed = false
	if len(r.cfg.Enders) == 0 {
		return
	}
	if r.last == nil {
		r.last = &service.Table{}
	}
	if len(r.stale) > 0 || r.confirmer.busy() {
		// What is right again since then. A client that sends meanwhile keeps its connection.
		for _, f := range Stale(table, r.last) {
			delete(r.stale, f.Key())
			r.confirmer.drop(f.Key())
		}
	}
	for _, f := range Stale(r.last, table) {
		r.stale[f.Key()] = f
	}
	r.last = table
}

// Programmed tells that the rules are now those of the last Wanted.
func (r *Reconciler) Programmed() { r.programmed = true }

// Reconcile ends the flows that are wrong, in one search for all that became so meanwhile.
// It returns how long to wait if there will be more to do, 0 if not.
func (r *Reconciler) Reconcile(ctx context.Context) time.Duration {
	if !r.programmed || len(r.cfg.Enders) == 0 {
		return 0
	}
	for _, f := range r.confirmer.gone() {
		r.stale[f.Key()] = f
	}
	if len(r.stale) == 0 && r.audited {
		return 0
	}
	start := r.clock()
	if wait := r.pauseUntil.Sub(start); wait > 0 {
		return wait
	}
	ended, err := r.search(ctx)
	now := r.clock()
	took := now.Sub(start)
	r.pauseUntil = now.Add(min((searchShare-1)*took, longestPause))
	r.cfg.Observe(took, ended)
	if err != nil && ctx.Err() != nil {
		return 0 // the agent ends; the next one audits
	}
	if err != nil {
		r.cfg.Log.Warn("some clients may still send to endpoints that are gone, will try again", "err", err, "again", failurePause)
		return failurePause
	}
	return 0
}

// search ends what is known to be wrong and, once after the start, what an agent that was
// killed did not end.
func (r *Reconciler) search(ctx context.Context) (ended int, err error) {
	if len(r.stale) > 0 {
		flows := slices.Collect(maps.Values(r.stale))
		if ended, err = r.each(func(e Ender) (Result, error) { return e.EndFlows(ctx, flows) }); err != nil {
			return ended, err
		}
		clear(r.stale)
	}
	if r.audited {
		return ended, nil
	}
	c := NewChecker(r.last)
	n, err := r.each(func(e Ender) (Result, error) { return e.AuditFlows(ctx, c) })
	r.audited = err == nil
	return ended + n, err
}

// each makes every Ender do something, also after one has failed, and asks about the pods
// of what they found unconfirmed.
func (r *Reconciler) each(do func(Ender) (Result, error)) (ended int, err error) {
	var all Result
	var failed []error
	for _, e := range r.cfg.Enders {
		one, err := do(e)
		all.add(one)
		if err != nil {
			failed = append(failed, err)
		}
	}
	r.confirmer.ask(slices.DeleteFunc(all.Unconfirmed, r.unknowable))
	return all.Ended, errors.Join(failed...)
}

// unknowable reports whether no answer about pods can say that the flow's endpoint is gone:
// nothing says that it is a pod's. That there is no pod with the address of a database
// outside the cluster is no news. A name comes from an EndpointSlice; where the slice is
// gone, as after a restart, the address must be one of a pod.
func (r *Reconciler) unknowable(f Flow) bool {
	pods := r.last.Settings.Pods
	return f.Pod == "" && !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(f.Endpoint.Addr()) })
}
