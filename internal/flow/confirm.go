package flow

import (
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

// A PodLookup finds pods of the cluster. Several goroutines call it at a time.
type PodLookup interface {
	// Pod reports whether a pod with the name and the address exists in the namespace and still has a running
	// container, and whether the pod is being deleted. An empty name matches every pod with the address. An error
	// with a method Denied that returns true says that the agent has no right to read pods.
	Pod(ctx context.Context, namespace, name string, addr netip.Addr) (exists, terminating bool, err error)
}

const (
	// maxInFlight bounds the requests at a time. perSecond bounds the requests in a second, after burst requests at
	// once. An agent is one of thousands, so it must not keep the API server busy.
	maxInFlight = 8
	perSecond   = 10
	burst       = 10
	// maxQuestions bounds the open questions. Connections to further pods continue.
	maxQuestions = 4000
	// maxTries bounds the requests for one question. With the pauses between them they take about 25 minutes.
	maxTries = 30
	// aliveAnswers is the number of answers after which a pod counts as alive. One answer is not enough: an API
	// server may answer from a cache that is a moment old.
	aliveAnswers = 2
)

// periods are the durations of a question. Tests shorten them.
type periods struct {
	deadline                 time.Duration // of one request
	firstPause, longestPause time.Duration // between two requests; doubles from the first to the longest
}

// A question asks whether the pod with an address is gone.
type question struct {
	namespace, pod string
	addr           netip.Addr
}

func (f Flow) question() question { return question{f.Namespace, f.Pod, f.Endpoint.Addr()} }

// An inquiry is an open question, with the flows that end if the pod is gone.
type inquiry struct {
	question
	flows map[Key]Flow // guarded by confirmer.mu; empty: nobody needs the answer
}

// A confirmer finds out whether pods are gone. Each question has a goroutine with its own deadlines and pauses, so a
// question without an answer delays no other question.
type confirmer struct {
	log     *slog.Logger
	pods    PodLookup
	periods periods
	wake    chan struct{} // receives after a pod turned out to be gone
	asked   chan struct{} // receives when fresh has a new inquiry

	logDenied sync.Once

	mu        sync.Mutex
	open      map[question]*inquiry
	fresh     []*inquiry // inquiries without a goroutine
	byFlow    map[Key]*inquiry
	confirmed map[Key]Flow // flows whose pod is gone, for the next call of gone
}

func newConfirmer(log *slog.Logger, pods PodLookup) *confirmer {
	return &confirmer{
		log: log, pods: pods, periods: periods{deadline: 10 * time.Second, firstPause: 2 * time.Second, longestPause: time.Minute},
		wake: make(chan struct{}, 1), asked: make(chan struct{}, 1),
		open: map[question]*inquiry{}, byFlow: map[Key]*inquiry{}, confirmed: map[Key]Flow{},
	}
}

// ask opens questions about the pods of flows, and returns at once.
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
			i = &inquiry{question: q, flows: map[Key]Flow{}}
			c.open[q], c.fresh = i, append(c.fresh, i)
		}
		i.flows[f.Key()], c.byFlow[f.Key()] = f, i
	}
	if refused > 0 {
		c.log.Warn("too many pods may be gone; connections to some of them are kept", "flows", refused, "questions", maxQuestions)
	}
	signal(c.asked)
}

// drop forgets a flow that a newer table allows again.
func (c *confirmer) drop(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(k)
}

// remove is drop for a caller that holds mu. It closes a question without flows.
func (c *confirmer) remove(k Key) {
	delete(c.confirmed, k)
	i := c.byFlow[k]
	if i == nil {
		return
	}
	delete(i.flows, k)
	delete(c.byFlow, k)
	if len(i.flows) == 0 && c.open[i.question] == i {
		delete(c.open, i.question)
	}
}

// busy reports whether drop could find a flow.
func (c *confirmer) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byFlow)+len(c.confirmed) > 0
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

// run answers questions until ctx ends.
func (c *confirmer) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	inFlight, pace := semaphore.NewWeighted(maxInFlight), rate.NewLimiter(perSecond, burst)
	for {
		c.mu.Lock()
		fresh := c.fresh
		c.fresh = nil
		c.mu.Unlock()
		for _, i := range fresh {
			all.Go(func() { c.answer(ctx, i, inFlight, pace) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.asked:
		}
	}
}

// answer sends requests until a question is answered or closed, or ctx ends. The pauses are random, so that agents do
// not ask at the same time.
func (c *confirmer) answer(ctx context.Context, i *inquiry, inFlight *semaphore.Weighted, pace *rate.Limiter) {
	alive, pause := 0, c.periods.firstPause
	for try := 1; ; try++ {
		if inFlight.Acquire(ctx, 1) != nil {
			return
		}
		done := pace.Wait(ctx) != nil || c.request(ctx, i, &alive, try == maxTries)
		inFlight.Release(1)
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, c.periods.longestPause)
	}
}

// request asks once. It returns true if no further request is needed. alive counts the answers that the pod lives.
func (c *confirmer) request(ctx context.Context, i *inquiry, alive *int, last bool) (done bool) {
	c.mu.Lock()
	dropped := len(i.flows) == 0
	c.mu.Unlock()
	if dropped {
		return true
	}
	asking, cancel := context.WithTimeout(ctx, c.periods.deadline)
	exists, terminating, err := c.pods.Pod(asking, i.namespace, i.pod, i.addr)
	cancel()
	log := c.log.With("namespace", i.namespace, "pod", i.pod, "address", i.addr)
	gone := false
	switch {
	case ctx.Err() != nil:
		return true
	case denied(err):
		c.logDenied.Do(func() {
			c.log.Info("this agent has no right to look for pods; connections to pods that left a Service without being deleted first go on "+
				"[add the component deploy/components/pod-lookup]", "err", err)
		})
		last = true
	case err == nil && !exists:
		gone = true
	case err == nil && !terminating && *alive+1 == aliveAnswers:
		log.Debug("a pod that left a Service lives; connections to it go on")
		last = true
	case last:
		log.Warn("it is not known whether a pod is gone; connections to it are kept", "err", err)
	case err != nil:
		log.Debug("cannot find out whether a pod is gone", "err", err)
	case !terminating:
		*alive++
	}
	if gone || last {
		c.finish(i, gone)
	}
	return gone || last
}

// denied reports whether an error says that the API server will refuse all such requests.
func denied(err error) bool {
	var d interface{ Denied() bool }
	return errors.As(err, &d) && d.Denied()
}

// finish closes a question.
func (c *confirmer) finish(i *inquiry, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[i.question] == i {
		delete(c.open, i.question)
	}
	for k, f := range i.flows {
		delete(c.byFlow, k)
		if gone {
			f.Unconfirmed = false
			c.confirmed[k] = f
		}
	}
	if gone && len(i.flows) > 0 {
		signal(c.wake)
	}
}

// signal wakes the receiver of c. One pending signal is enough.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
