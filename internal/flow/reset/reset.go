package reset

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

const (
	// priority tells our forged packets from others inside this node. It means nothing
	// to the kernel: classes of traffic are small numbers.
	priority = numbers.PriorityChallenge
	// mark is put on the conntrack entries of connections that are reset.
	mark = numbers.ConnMarkReset
	// burst is how many connections are reset at once, and pace the time from one burst to
	// the next: 20,000 a second.
	burst, pace = 200, 10 * time.Millisecond
)

// periods are the times that a reset takes.
type periods struct {
	// lifetime is that of a marked entry. It is longer than both challenges take, and short
	// for a client that uses its port again and is kept waiting.
	lifetime time.Duration
	// again is the time from the first challenge to the second, for clients that did not
	// receive the first. A kernel answers invalid segments twice a second at most
	// (tcp_invalid_ratelimit).
	again time.Duration
	// linger is how long the rules stay after they were needed last.
	linger time.Duration
}

const tableName = numbers.TableReset

//go:embed rules.nft
var rules string

// Config says what a Resetter works with. Log and Flows are required.
type Config struct {
	Log *slog.Logger
	// Flows is the Resetter's alone.
	Flows *conntrack.Table
}

// A Resetter resets TCP connections.
type Resetter struct {
	cfg   Config
	times periods
	table *nft.Table
	watch *nft.Watch
	wake  chan struct{}

	mu    sync.Mutex
	inbox []conntrack.Entry

	// What follows is Run's alone.
	queue   []conntrack.Entry
	pending []secondChallenge // by time
	loaded  time.Time         // when the rules were loaded last; zero: they are not
	failing bool              // the failure has been logged
}

// A secondChallenge is the one that a connection gets some time after the first.
type secondChallenge struct {
	at    time.Time
	entry conntrack.Entry
}

// New returns a Resetter. It does not touch the kernel.
func New(cfg Config) *Resetter {
	table := nft.New(tableName)
	return &Resetter{
		cfg:   cfg,
		times: periods{lifetime: 5 * time.Second, again: time.Second, linger: 10 * time.Second},
		table: table, watch: table.Watch(),
		wake: make(chan struct{}, 1),
	}
}

// Reset asks for TCP connections to be reset and returns at once. Any goroutine may call it.
func (r *Resetter) Reset(connections []conntrack.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inbox = append(r.inbox, connections...)
	select {
	case r.wake <- struct{}{}:
	default: // one waiting wake-up is enough
	}
}

// Run works until ctx ends, in the network namespace of its thread, and returns nil
// then. Connections that still wait for their reset are left as they are.
func (r *Resetter) Run(ctx context.Context) error {
	defer r.cfg.Flows.Close()
	r.clean(ctx) // what a killed agent may have left
	defer r.clean(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-timer.C:
		}
		r.mu.Lock()
		r.queue, r.inbox = append(r.queue, r.inbox...), nil
		r.mu.Unlock()
		if again := r.work(ctx, time.Now()); again > 0 {
			timer.Reset(again)
		}
	}
}

// work does what is due, and returns when there will be more to do; 0: there is nothing.
func (r *Resetter) work(ctx context.Context, now time.Time) time.Duration {
	n := min(burst, len(r.queue))
	some := r.queue[:n]
	if r.queue = r.queue[n:]; len(r.queue) == 0 {
		r.queue = nil
	}
	r.logFailure(r.reset(ctx, some, now))
	var due []conntrack.Entry
	for len(due) < burst && len(r.pending) > 0 && !r.pending[0].at.After(now) {
		due = append(due, r.pending[0].entry)
		r.pending = r.pending[1:]
	}
	r.challenge(due, flagACK)
	switch {
	case len(r.queue) > 0:
		return pace
	case len(r.pending) > 0:
		return max(pace, r.pending[0].at.Sub(now))
	case r.loaded.IsZero():
		return 0
	case now.Before(r.loaded.Add(r.times.linger)):
		return r.loaded.Add(r.times.linger).Sub(now)
	}
	r.pending = nil
	r.clean(ctx)
	return 0
}

// reset resets connections. The entries of those that are not established are removed:
// their clients try again, and get another endpoint.
func (r *Resetter) reset(ctx context.Context, entries []conntrack.Entry, now time.Time) error {
	var open, rest []conntrack.Entry
	for _, e := range entries {
		switch {
		case e.MarkedForReset():
		case e.Open():
			open = append(open, e)
		default:
			rest = append(rest, e)
		}
	}
	if len(open) > 0 {
		if err := r.load(ctx, now); err != nil {
			// Without our rules the next endpoint resets the connection, when the client sends.
			_, failed := r.cfg.Flows.Remove(ctx, entries)
			return errors.Join(err, failed)
		}
	}
	if _, err := r.cfg.Flows.Remove(ctx, rest); err != nil {
		return err
	}
	if _, err := r.cfg.Flows.MarkForReset(ctx, open, mark, r.times.lifetime); err != nil {
		return err
	}
	for _, e := range open {
		r.pending = append(r.pending, secondChallenge{now.Add(r.times.again), e})
	}
	r.challenge(open, flagSYN)
	if len(entries) > 0 {
		r.cfg.Log.Debug("reset connections to endpoints that are gone", "established", len(open), "others", len(rest))
	}
	return nil
}

// logFailure logs the first failure after a success.
func (r *Resetter) logFailure(err error) {
	if err != nil && !r.failing {
		r.cfg.Log.Warn("connections to endpoints that are gone may not be reset at once", "err", err)
	}
	r.failing = err != nil
}

// load makes the kernel run the rules, unless they are there as the last load left them.
func (r *Resetter) load(ctx context.Context, now time.Time) error {
	if err := r.reload(ctx); err != nil {
		r.loaded = time.Time{}
		return fmt.Errorf("load the rules for resets: %w", err)
	}
	r.loaded = now
	return nil
}

func (r *Resetter) reload(ctx context.Context) error {
	if !r.loaded.IsZero() {
		change, accept, err := r.watch.Look(ctx)
		if err == nil && change != nft.Rules {
			accept() // the table has no elements
			return nil
		}
	}
	r.watch.Reset()
	if err := r.watch.Begin(ctx); err != nil {
		return err
	}
	p := program()
	if _, err := r.table.Load(ctx, p, true); err != nil {
		return err
	}
	if err := r.table.Prune(ctx, p); err != nil {
		return err
	}
	return r.watch.End(ctx, true)
}

// program is the table's, as constant as its numbers.
func program() *nft.Ruleset {
	hex := func(n int) string { return fmt.Sprintf("%#x", n) }
	return &nft.Ruleset{Source: rules, Data: map[string]any{
		"Mark": hex(mark), "Priority": hex(priority), "Look": numbers.HookReset, "Untrack": numbers.HookChallenge,
	}}
}

// clean removes the rules, if there are any.
func (r *Resetter) clean(ctx context.Context) {
	r.loaded = time.Time{}
	if err := r.table.Delete(context.WithoutCancel(ctx)); err != nil {
		r.cfg.Log.Debug("cannot remove the rules for resets", "err", err)
	}
}

// Cleanup removes the rules, if there are any.
func Cleanup(ctx context.Context) error {
	if err := nft.New(tableName).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for resets: %w", err)
	}
	return nil
}

// challenge sends an invalid segment to both ends of each connection, as if it came from the
// other end. One that cannot be sent has no route, or the queue is full: the rules and the
// second challenge remain.
func (r *Resetter) challenge(entries []conntrack.Entry, flags byte) {
	if len(entries) == 0 {
		return
	}
	s, err := open()
	if err != nil {
		r.logFailure(err)
		return
	}
	defer s.close()
	for _, e := range entries {
		for _, c := range [...]struct{ from, to netip.AddrPort }{{e.Frontend(), e.Client()}, {e.ReplyTo(), e.Endpoint()}} {
			// Any sequence number will do: one in a thousand is valid by chance.
			packet := segment(c.from, c.to, flags, rand.Uint32())
			if err := s.send(packet, c.to.Addr()); err != nil {
				r.cfg.Log.Debug("cannot send a challenge", "to", c.to, "err", err)
			}
		}
	}
}
