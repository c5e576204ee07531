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

// Config configures a Reconciler. Log is required.
type Config struct {
	Log *slog.Logger
	// Enders end flows, each in its own memory. Without Enders no flow is ended.
	Enders []Ender
	// Pods finds out whether a pod is gone. Nil: unconfirmed flows continue.
	Pods PodLookup
	// Observe is called after each search, with its duration and the number of flows it ended. It may be nil.
	Observe func(took time.Duration, ended int)
}

// A Reconciler ends the flows that changes made wrong. All methods except Run and Wake belong to the goroutine that
// programs the tables.
type Reconciler struct {
	cfg Config
	// last is the table of the last Wanted, programmed or not. Nil: there was none.
	last *service.Table
	// programmed says that the kernel has the rules of last. Before that, no flow is ended: the client's next packet
	// would create it again.
	programmed bool
	stale      map[Key]Flow // wrong flows to end in the next search
	audited    bool         // AuditFlows has succeeded
	pauseUntil time.Time    // no search starts earlier
	clock      func() time.Time
	confirmer  *confirmer
}

// A search walks the kernel's whole table (docs/decisions/0009). Searches take at most one part in searchShare of the
// time, but no flow waits longer than longestPause.
const (
	searchShare  = 20
	longestPause = 250 * time.Millisecond
	// failurePause is the pause after a failed search.
	failurePause = time.Second
)

// New returns a Reconciler that knows no table. It starts no goroutine.
func New(cfg Config) *Reconciler {
	if cfg.Observe == nil {
		cfg.Observe = func(time.Duration, int) {}
	}
	return &Reconciler{cfg: cfg, stale: map[Key]Flow{}, clock: time.Now, confirmer: newConfirmer(cfg.Log, cfg.Pods)}
}

// Run asks whether pods are gone, until ctx ends. It returns nil.
func (r *Reconciler) Run(ctx context.Context) error { return r.confirmer.run(ctx) }

// Wake receives when a pod turned out to be gone: call Reconcile. Any goroutine may receive from it.
func (r *Reconciler) Wake() <-chan struct{} { return r.confirmer.wake }

// Adopted sets the table that the kernel had before the first Wanted. Then the comparison of tables also finds flows
// that became wrong while no agent ran. Without Adopted the table before the first Wanted counts as empty.
func (r *Reconciler) Adopted(held *service.Table) {
	if r.last == nil {
		r.last = held
	}
}

// Wanted announces the table that the caller is about to program. If programming fails, the kernel may have a part of
// the table.
func (r *Reconciler) Wanted(table *service.Table) {
	r.programmed = false
	if len(r.cfg.Enders) == 0 {
		return
	}
	if r.last == nil {
		r.last = &service.Table{}
	}
	if len(r.stale) > 0 || r.confirmer.busy() {
		// The new table allows these flows again. They did not end, so their clients keep them.
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

// Programmed tells that the kernel has the rules of the last Wanted.
func (r *Reconciler) Programmed() { r.programmed = true }

// Reconcile ends the wrong flows, in one search for all changes since the last search. It returns the time until the
// next call, or 0 if there is nothing left to do.
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
		return 0 // the agent ends, and the next agent audits
	}
	if err != nil {
		r.cfg.Log.Warn("some clients may still send to endpoints that are gone, will try again", "err", err, "again", failurePause)
		return failurePause
	}
	return 0
}

// search ends the flows in stale. The first successful search also audits all flows, because a killed agent may have
// left wrong ones.
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

// each calls do for every Ender, also after an error, and asks about the pods of unconfirmed flows.
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

// unknowable reports whether the API server cannot say that the flow's endpoint is gone, because the endpoint is not
// known to be a pod. For example, no pod has the address of a database outside the cluster, and that does not mean that
// the database is gone. An endpoint counts as a pod if an EndpointSlice named its pod, or if its address is in the
// pods' ranges: after a restart the slice may be gone.
func (r *Reconciler) unknowable(f Flow) bool {
	pods := r.last.Settings.Pods
	return f.Pod == "" && !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(f.Endpoint.Addr()) })
}
