package edge

import (
	"container/heap"
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/service"
)

// A Target is the address and the path of a node's health check.
type Target struct {
	At   netip.AddrPort
	Path string
}

// maxInFlight limits the checks under way. It allows the checks of one dead node for hundreds of Services, which all last
// until their deadline.
const maxInFlight = 256

// A Prober asks targets, each at its interval, and keeps their states. If there are more due targets than it may ask,
// namespaces take turns. Any goroutine may call its methods.
type Prober struct {
	checks         Checks
	ask            func(ctx context.Context, t Target) service.ProbeResult
	observe        func(service.ProbeState) // called with each answer, for the metrics
	wake           chan struct{}            // results changed
	targetsChanged chan struct{}            // targets changed

	mu      sync.Mutex
	targets map[Target]*target
	queue   queue                // the targets that are not due yet, by due time
	due     *fair.Queue[*target] // the due targets, by namespace, and removed ones
	changed map[Target]struct{}  // since the last Take
	open    int                  // targets without an answer
}

// A target is a Target with its state.
type target struct {
	Target
	verdict
	namespace string
	due       time.Time
	index     int // in Prober.queue; -1: not there
	removed   bool
}

// NewProber returns a Prober without targets. It calls observe with each answer; observe may be nil.
func NewProber(c Checks, ask func(ctx context.Context, t Target) service.ProbeResult, observe func(service.ProbeState)) *Prober {
	if observe == nil {
		observe = func(service.ProbeState) {}
	}
	return &Prober{
		checks: c, ask: ask, observe: observe, wake: make(chan struct{}, 1), targetsChanged: make(chan struct{}, 1),
		targets: map[Target]*target{}, changed: map[Target]struct{}{},
		due: fair.NewQueue(func(t *target) string { return t.namespace }),
	}
}

// Set replaces the targets. want has the namespace of each target; empty: all tenants need the target. Known targets keep
// their state, and new ones are asked at once.
func (p *Prober) Set(want map[Target]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, t := range p.targets {
		if _, ok := want[at]; ok {
			continue
		}
		if t.counts.State == service.Unprobed {
			p.open--
		}
		if t.removed = true; t.index >= 0 {
			heap.Remove(&p.queue, t.index)
		}
		delete(p.targets, at)
	}
	now := time.Now()
	for at, namespace := range want {
		t := p.targets[at]
		if t == nil {
			t = &target{Target: at, due: now}
			p.targets[at] = t
			p.open++
			heap.Push(&p.queue, t)
		}
		t.namespace = namespace
	}
	notify(p.targetsChanged)
	notify(p.wake) // the first answers may be complete now
}

// Result returns the state of a target.
func (p *Prober) Result(at Target) service.ProbeResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.targets[at]; t != nil {
		return t.counts
	}
	return service.ProbeResult{}
}

// Dirty receives when a result has changed, or the last target has answered for the first time.
func (p *Prober) Dirty() <-chan struct{} { return p.wake }

// Take returns the targets whose results have changed since the last call. complete is true if all targets have answered
// or missed a deadline.
func (p *Prober) Take() (changed []Target, complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range maps.Keys(p.changed) {
		changed = append(changed, at)
	}
	clear(p.changed)
	return changed, p.open == 0
}

// States counts the targets by state.
func (p *Prober) States() map[service.ProbeState]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[service.ProbeState]int{}
	for _, t := range p.targets {
		all[t.counts.State]++
	}
	return all
}

// Run asks until ctx ends, and returns nil then.
func (p *Prober) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	slots := make(chan struct{}, maxInFlight)
	gap := time.Second / time.Duration(p.checks.PerSecond)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.targetsChanged:
		case <-timer.C:
		}
		for now := time.Now(); !now.Before(next); now = time.Now() {
			t := p.pop(now)
			if t == nil {
				break
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			next = later(next, now.Add(-10*gap)).Add(gap) // after a late timer, up to ten checks catch up
			asking.Go(func() {
				defer func() { <-slots }()
				p.answer(t, p.ask(ctx, t.Target), ctx.Err() != nil)
			})
		}
		timer.Reset(max(time.Until(p.earliest(next)), 0))
	}
}

// pop returns the due target whose turn it is; nil if no target is due.
func (p *Prober) pop(now time.Time) *target {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && !p.queue[0].due.After(now) {
		p.due.Push(heap.Pop(&p.queue).(*target))
	}
	for p.due.Len() > 0 {
		if t := p.due.Pop(); !t.removed {
			t.due = now.Add(p.checks.Interval + spread(p.checks.Interval))
			return t
		}
	}
	return nil
}

// earliest returns when the next target may be asked, not before next.
func (p *Prober) earliest(next time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.due.Len() > 0:
		return next
	case len(p.queue) > 0:
		return later(next, p.queue[0].due)
	}
	return time.Now().Add(time.Hour) // targetsChanged ends the wait
}

// answer processes an answer, and queues the target again.
func (p *Prober) answer(t *target, r service.ProbeResult, ended bool) {
	if ended {
		return
	}
	p.observe(r.State)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.removed {
		return
	}
	heap.Push(&p.queue, t)
	notify(p.targetsChanged)
	first := t.counts.State == service.Unprobed
	if t.add(r, p.checks) {
		p.changed[t.Target] = struct{}{}
		notify(p.wake)
	}
	if first {
		p.open--
	}
}

// spread returns a random time of up to a tenth of d, so that targets do not stay in step.
func spread(d time.Duration) time.Duration { return rand.N(d/10 + 1) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// notify leaves one wake-up in a channel with room for one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A queue is a heap of targets by due time.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is a part of heap.Interface.
func (q *queue) Push(x any) {
	t := x.(*target)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop is a part of heap.Interface.
func (q *queue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.index = -1
	return t
}
