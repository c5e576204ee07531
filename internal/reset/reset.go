package reset

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/conntrack"
	"github.com/fairway-net/fairway/internal/nft"
)

const (
	// priority tells our forged packets from others inside this node. It means nothing
	// to the kernel: classes of traffic are small numbers.
	priority = 0x0fa1_0a11
	// mark is put on doomed entries.
	mark = 0x0800_0000
	// burst is how many connections end in one go, and pace the time from one to the
	// next: 20,000 a second.
	burst, pace = 200, 10 * time.Millisecond
)

// periods are the times that a reset takes.
type periods struct {
	// lifetime is that of a doomed entry. It is longer than all provocations take, and
	// short for a client that uses its port again and is kept waiting.
	lifetime time.Duration
	// again is when those who may not have heard the first provocation get the second.
	// A kernel answers nonsense twice a second at most (tcp_invalid_ratelimit).
	again time.Duration
	// linger is how long the rules stay after they were needed last.
	linger time.Duration
	// askAgain is the pause after a question without an answer.
	askAgain time.Duration
}

const tableName = "fairway-reset"

//go:embed rules.nft
var rules string

// An End is a connection to end.
type End struct {
	conntrack.Entry
	// Doubt says that the endpoint may live: it is gone if Namespace has no living pod
	// with its address.
	Doubt     bool
	Namespace string
}

// Config says what a Resetter works with. Log and Flows are required.
type Config struct {
	Log *slog.Logger
	// Flows is the Resetter's alone.
	Flows *conntrack.Table
	// Alive reports whether the namespace has a living pod with that address. Nil: nobody
	// knows, so that connections in doubt are kept.
	Alive func(ctx context.Context, namespace string, addr netip.Addr) (bool, error)
}

// A Resetter ends connections.
type Resetter struct {
	cfg   Config
	times periods
	table *nft.Table
	wake  chan struct{}
	ask   chan struct{}

	mu     sync.Mutex
	inbox  []conntrack.Entry
	doubts map[doubt][]func()

	// What follows is Run's alone.
	queue   []conntrack.Entry
	pending []provocation // the second ones, by time
	loaded  time.Time     // the rules, last; zero: they are not
	failing bool          // has been told
}

// A provocation is the second one of a flow.
type provocation struct {
	at    time.Time
	entry conntrack.Entry
}

// New returns a Resetter. It does not touch the kernel.
func New(cfg Config) *Resetter {
	return &Resetter{
		cfg:   cfg,
		times: periods{lifetime: 5 * time.Second, again: time.Second, linger: 10 * time.Second, askAgain: 2 * time.Second},
		table: nft.New(tableName), doubts: map[doubt][]func(){},
		wake: make(chan struct{}, 1), ask: make(chan struct{}, 1),
	}
}

// End asks for connections to be ended and returns at once. It may be called by any
// goroutine.
func (r *Resetter) End(all []End) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range all {
		if e.Doubt {
			about := doubt{e.Namespace, e.Endpoint().Addr()}
			r.doubts[about] = append(r.doubts[about], func() { r.End([]End{{Entry: e.Entry}}) })
		} else {
			r.inbox = append(r.inbox, e.Entry)
		}
	}
	if len(r.inbox) > 0 {
		ring(r.wake)
	}
	if len(r.doubts) > 0 {
		ring(r.ask)
	}
}

// IfGone calls then, on a goroutine of Run, when the namespace turns out to have no
// living pod with that address; never if it has one. It may be called by any goroutine.
func (r *Resetter) IfGone(namespace string, addr netip.Addr, then func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	about := doubt{namespace, addr}
	r.doubts[about] = append(r.doubts[about], then)
	ring(r.ask)
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, in the network namespace of its thread, and returns nil
// then. Whoever is under way is let go.
func (r *Resetter) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	asking.Go(func() { r.settle(ctx) })
	defer asking.Wait()
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
	r.tell(r.reset(ctx, some, now))
	var due []conntrack.Entry
	for len(due) < burst && len(r.pending) > 0 && !r.pending[0].at.After(now) {
		due = append(due, r.pending[0].entry)
		r.pending = r.pending[1:]
	}
	r.provoke(due, flagACK)
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

// reset ends connections. Those that are not established are forgotten: their clients
// try again, and get another endpoint.
func (r *Resetter) reset(ctx context.Context, entries []conntrack.Entry, now time.Time) error {
	var open, rest []conntrack.Entry
	for _, e := range entries {
		switch {
		case e.Doomed():
		case e.Open():
			open = append(open, e)
		default:
			rest = append(rest, e)
		}
	}
	if len(open) > 0 {
		if err := r.load(ctx, now); err != nil {
			// Without our rules it is the next endpoint that resets, when the client sends.
			_, failed := r.cfg.Flows.Remove(ctx, entries)
			return errors.Join(err, failed)
		}
	}
	if _, err := r.cfg.Flows.Remove(ctx, rest); err != nil {
		return err
	}
	if _, err := r.cfg.Flows.Doom(ctx, open, mark, r.times.lifetime); err != nil {
		return err
	}
	for _, e := range open {
		r.pending = append(r.pending, provocation{now.Add(r.times.again), e})
	}
	r.provoke(open, flagSYN)
	if len(entries) > 0 {
		r.cfg.Log.Debug("reset connections to endpoints that are gone", "established", len(open), "others", len(rest))
	}
	return nil
}

// tell logs what goes wrong, once until something goes well.
func (r *Resetter) tell(err error) {
	if err != nil && !r.failing {
		r.cfg.Log.Warn("connections to endpoints that are gone may not be reset at once", "err", err)
	}
	r.failing = err != nil
}

// load makes sure that the rules are there for long enough. They are not trusted to be
// there for long: to load them costs less than to look whether another hand took them.
func (r *Resetter) load(ctx context.Context, now time.Time) error {
	if now.Before(r.loaded.Add(r.times.again)) {
		return nil
	}
	text := strings.NewReplacer("MARK", fmt.Sprintf("%#x", mark), "PRIORITY", fmt.Sprintf("%#x", priority)).Replace(rules)
	err := r.table.Run(ctx, "table inet "+tableName+" {}\ndelete table inet "+tableName+"\n"+text)
	if err != nil {
		return fmt.Errorf("load the rules for resets: %w", err)
	}
	r.loaded = now
	return nil
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

// provoke sends a packet to both ends of each connection, as if it came from the other.
// Whom it does not reach has no route, or the network is full: the rules and the second
// try remain.
func (r *Resetter) provoke(entries []conntrack.Entry, flags byte) {
	if len(entries) == 0 {
		return
	}
	s, err := open()
	if err != nil {
		r.tell(err)
		return
	}
	defer s.close()
	for _, e := range entries {
		for _, way := range [...]struct{ from, to netip.AddrPort }{{e.To(), e.Client()}, {e.Back(), e.Endpoint()}} {
			// Any number will do; by chance one in a thousand makes sense to the other end.
			packet := segment(way.from, way.to, flags, rand.Uint32())
			if err := s.send(packet, way.to.Addr()); err != nil {
				r.cfg.Log.Debug("cannot provoke an answer", "from", way.to, "err", err)
			}
		}
	}
}
