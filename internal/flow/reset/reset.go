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
	// priority identifies our forged packets inside this node. Traffic classes have small numbers, so the kernel does
	// not use it.
	priority = numbers.PriorityChallenge
	// mark is the mark on the conntrack entries of connections to reset.
	mark = numbers.ConnMarkReset
	// burst is the number of connections that are reset at once, and pace the time between two bursts: 20,000
	// connections a second.
	burst, pace = 200, 10 * time.Millisecond
)

// periods are the durations of a reset. Tests change them.
type periods struct {
	// lifetime is the timeout of a marked entry. It is longer than both challenges take. It is short, because a client
	// that uses its port again must wait for its end.
	lifetime time.Duration
	// again is the time from the first challenge to the second, for clients that did not get the first. A kernel
	// answers at most two invalid segments a second (tcp_invalid_ratelimit).
	again time.Duration
	// linger is the time from the last reset to the removal of the rules.
	linger time.Duration
}

const tableName = numbers.TableReset

//go:embed rules.nft
var rules string

// Config configures a Resetter. Log and Flows are required.
type Config struct {
	Log *slog.Logger
	// Flows belongs to the Resetter.
	Flows *conntrack.Table
}

// A Resetter resets TCP connections.
type Resetter struct {
	cfg   Config
	times periods
	table *nft.Table
	wake  chan struct{}

	mu    sync.Mutex
	inbox []conntrack.Entry

	// Only Run uses the fields below.
	queue   []conntrack.Entry
	pending []secondChallenge // sorted by time
	loaded  time.Time         // when the rules were last needed; zero: they are not loaded
	failing bool              // the last attempt failed, and that is logged
}

// A secondChallenge is a challenge that a connection gets some time after the first.
type secondChallenge struct {
	at    time.Time
	entry conntrack.Entry
}

// New returns a Resetter. It does not touch the kernel.
func New(cfg Config) *Resetter {
	return &Resetter{
		cfg:   cfg,
		times: periods{lifetime: 5 * time.Second, again: time.Second, linger: 10 * time.Second},
		table: nft.New(tableName),
		wake:  make(chan struct{}, 1),
	}
}

// Reset asks for TCP connections to be reset, and returns at once. Any goroutine may call it.
func (r *Resetter) Reset(connections []conntrack.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inbox = append(r.inbox, connections...)
	select {
	case r.wake <- struct{}{}:
	default: // one pending wake-up is enough
	}
}

// Run works until ctx ends, in the network namespace of its thread. It returns nil, and leaves connections in the queue
// as they are.
func (r *Resetter) Run(ctx context.Context) error {
	defer r.cfg.Flows.Close()
	r.clean(ctx) // a killed agent may have left rules
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

// work does the due work, and returns the time until the next call. 0: there is no more work.
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

// reset resets established connections. It removes the entries of all others: their clients try again, and get another
// endpoint.
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

// logFailure logs an error unless the attempt before failed too. Nil is a success.
func (r *Resetter) logFailure(err error) {
	if err != nil && !r.failing {
		r.cfg.Log.Warn("connections to endpoints that are gone may not be reset at once", "err", err)
	}
	r.failing = err != nil
}

// load loads the rules, unless this Resetter loaded them a moment ago.
func (r *Resetter) load(ctx context.Context, now time.Time) error {
	if r.loaded.IsZero() {
		p := program()
		if _, err := r.table.Load(ctx, p, true); err != nil {
			return fmt.Errorf("load the rules for resets: %w", err)
		}
		if err := r.table.Prune(ctx, p); err != nil {
			return fmt.Errorf("load the rules for resets: %w", err)
		}
	}
	r.loaded = now
	return nil
}

// program returns the rules of the table.
func program() *nft.Ruleset {
	hex := func(n int) string { return fmt.Sprintf("%#x", n) }
	return &nft.Ruleset{Source: rules, Data: map[string]any{
		"Mark": hex(mark), "Priority": hex(priority), "Look": numbers.HookReset, "Untrack": numbers.HookChallenge,
	}}
}

// clean removes the rules, if they exist.
func (r *Resetter) clean(ctx context.Context) {
	r.loaded = time.Time{}
	if err := r.table.Delete(context.WithoutCancel(ctx)); err != nil {
		r.cfg.Log.Debug("cannot remove the rules for resets", "err", err)
	}
}

// Cleanup removes the rules, if they exist.
func Cleanup(ctx context.Context) error {
	if err := nft.New(tableName).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for resets: %w", err)
	}
	return nil
}

// challenge sends an invalid segment to both ends of each connection, as if it came from the other end. A segment
// without a route or with a full queue is lost. The rules and the second challenge remain.
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
			// A random sequence number is enough: about one in a thousand is valid by chance.
			packet := segment(c.from, c.to, flags, rand.Uint32())
			if err := s.send(packet, c.to.Addr()); err != nil {
				r.cfg.Log.Debug("cannot send a challenge", "to", c.to, "err", err)
			}
		}
	}
}
