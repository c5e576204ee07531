package flow

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// A PodLookup knows the pods of the cluster.
type PodLookup interface {
	// Pod reports whether the namespace has a pod of that name that has the address and
	// whose containers have not ended, and whether that pod is being deleted. An empty name
	// stands for any pod. Several goroutines call it at a time. An error with a method
	// Denied that returns true says that there is no right to ask.
	Pod(ctx context.Context, namespace, name string, addr netip.Addr) (exists, terminating bool, err error)
}

const (
	// maxInFlight is how many questions are asked at a time, perSecond how many are begun in
	// a second, after burst at once: one agent of thousands must not keep the API server busy.
	maxInFlight = 8
	perSecond   = 10
	burst       = 10
	// maxQuestions bounds how many pods are asked about at all.
	maxQuestions = 10_000
	// maxTries bounds how often one question is asked, some 25 minutes long.
	maxTries = 30
	// aliveAnswers say that a pod lives: an API server may answer with what it knew a moment
	// ago.
	aliveAnswers = 2
)

// periods are the times that questions take. Tests make them short.
type periods struct {
	deadline                 time.Duration // of one question
	firstPause, longestPause time.Duration // before it is asked again; doubles from one to the other
}

// A question is whether the pod that had an address is gone.
type question struct {
	namespace, pod string
	addr           netip.Addr
}

func (f Flow) question() question { return question{f.Namespace, f.Pod, f.Endpoint.Addr()} }

// An inquiry is a question under way, and the flows that end if the pod is gone.
type inquiry struct {
	question
	flows map[Key]Flow
	due   time.Time
	pause time.Duration // before the next try
	tries int
	alive int // answers in a row
}

// A confirmer finds out whether pods are gone. Each question has its own deadline and its
// own pauses, so that one without an answer keeps none of the others waiting.
type confirmer struct {
	log     *slog.Logger
	pods    PodLookup
	periods periods
	wake    chan struct{} // a pod turned out to be gone

	noRight sync.Once // to ask: it is logged

	mu        sync.Mutex
	open      map[question]*inquiry // all, also those that are being asked
	waiting   queue                 // those that are not, by when they are due
	of        map[Key]*inquiry
	confirmed map[Key]Flow  // wrong, and their pod is gone
	changed   chan struct{} // waiting has a new first one
}

func newConfirmer(log *slog.Logger, pods PodLookup) *confirmer {
	return &confirmer{
		log: log, pods: pods, periods: periods{deadline: 10 * time.Second, firstPause: 2 * time.Second, longestPause: time.Minute},
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		open: map[question]*inquiry{}, of: map[Key]*inquiry{}, confirmed: map[Key]Flow{},
	}
}

// ask asks about the pods of flows and returns at once.
func (c *confirmer) ask(flows []Flow) {
	if c.pods == nil || len(flows) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	refused := 0
	for _, f := range flows {
		c.remove(f.Key())
		q := f.question()
		i := c.open[q]
		if i == nil {
			if len(c.open) >= maxQuestions {
				refused++
				continue
			}
			i = &inquiry{question: q, flows: map[Key]Flow{}, pause: c.periods.firstPause}
			c.open[q] = i
			heap.Push(&c.waiting, i)
		}
		i.flows[f.Key()], c.of[f.Key()] = f, i
	}
	if refused > 0 {
		c.log.Warn("too many pods may be gone; connections to some of them are kept", "flows", refused, "questions", maxQuestions)
	}
	signal(c.changed)
}

// drop forgets a flow that is right again.
func (c *confirmer) drop(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(k)
}

// remove is drop with c.mu held. A question without flows is not asked any more.
func (c *confirmer) remove(k Key) {
	delete(c.confirmed, k)
	i := c.of[k]
	if i == nil {
		return
	}
	delete(i.flows, k)
	delete(c.of, k)
	if len(i.flows) == 0 && c.open[i.question] == i {
		delete(c.open, i.question)
	}
}

// busy reports whether there is anything to drop.
func (c *confirmer) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.of)+len(c.confirmed) > 0
}

// gone returns the flows whose pod turned out to be gone since the last call.
func (c *confirmer) gone() []Flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	var flows []Flow
	for _, f := range c.confirmed {
		flows = append(flows, f)
	}
	clear(c.confirmed)
	return flows
}

// run asks until ctx ends.
func (c *confirmer) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	inFlight := semaphore.NewWeighted(maxInFlight)
	pace := rate.NewLimiter(perSecond, burst)
	for inFlight.Acquire(ctx, 1) == nil && pace.Wait(ctx) == nil {
		i := c.next(ctx)
		if i == nil {
			break
		}
		all.Go(func() {
			defer inFlight.Release(1)
			c.try(ctx, i)
		})
	}
	return nil
}

// next waits for a question to be due, and takes it. It returns nil when ctx ends.
func (c *confirmer) next(ctx context.Context) *inquiry {
	for {
		c.mu.Lock()
		wait := time.Hour
		if len(c.waiting) > 0 {
			if wait = time.Until(c.waiting[0].due); wait <= 0 {
				i := heap.Pop(&c.waiting).(*inquiry)
				c.mu.Unlock()
				return i
			}
		}
		c.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.changed:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// try asks once, and decides what follows from the answer.
func (c *confirmer) try(ctx context.Context, i *inquiry) {
	c.mu.Lock()
	dropped := len(i.flows) == 0
	c.mu.Unlock()
	if dropped {
		return
	}
	asking, cancel := context.WithTimeout(ctx, c.periods.deadline)
	exists, terminating, err := c.pods.Pod(asking, i.namespace, i.pod, i.addr)
	cancel()
	i.tries++
	log := c.log.With("namespace", i.namespace, "pod", i.pod, "address", i.addr)
	switch {
	case ctx.Err() != nil:
		return
	case denied(err):
		c.noRight.Do(func() {
			c.log.Info("this agent has no right to look for pods; connections to pods that left a Service without being deleted first go on "+
				"[add the component deploy/components/pod-lookup]", "err", err)
		})
		c.finish(i, false)
		return
	case err != nil:
		log.Debug("cannot find out whether a pod is gone", "err", err)
	case !exists:
		c.finish(i, true)
		return
	case !terminating:
		if i.alive++; i.alive == aliveAnswers {
			log.Debug("a pod that left a Service lives; connections to it go on")
			c.finish(i, false)
			return
		}
	}
	if i.tries == maxTries {
		log.Warn("it is not known whether a pod is gone; connections to it are kept", "err", err)
		c.finish(i, false)
		return
	}
	c.later(i)
}

// denied reports whether an error says that no such question will be answered.
func denied(err error) bool {
	var d interface{ Denied() bool }
	return errors.As(err, &d) && d.Denied()
}

// later asks again after a pause. The pauses of agents differ, so that they do not all ask
// at the same time.
func (c *confirmer) later(i *inquiry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(i.flows) == 0 {
		return
	}
	i.due = time.Now().Add(i.pause/2 + rand.N(i.pause))
	i.pause = min(2*i.pause, c.periods.longestPause)
	heap.Push(&c.waiting, i)
	signal(c.changed)
}

// finish closes a question.
func (c *confirmer) finish(i *inquiry, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[i.question] == i {
		delete(c.open, i.question)
	}
	for k, f := range i.flows {
		delete(c.of, k)
		if gone {
			f.Unconfirmed = false
			c.confirmed[k] = f
		}
	}
	if gone && len(i.flows) > 0 {
		signal(c.wake)
	}
}

// signal wakes the reader of c; one waiting wake-up is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A queue is a heap of inquiries, the one due first on top; new ones are due at once.
type queue []*inquiry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(a, b int) bool { return q[a].due.Before(q[b].due) }
func (q queue) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(*inquiry)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}
