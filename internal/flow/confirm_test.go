package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// patience is the time limit for an expected event. It is long, because a loaded machine is no failure.
const patience = 30 * time.Second

// An answer is the API server's answer about a pod.
type answer struct {
	exists, terminating bool
	err                 error
	hangs               bool // until the caller gives up
}

// cluster answers questions about pods. Each pod has a list of answers, and the last answer repeats.
type cluster struct {
	mu      sync.Mutex
	answers map[string][]answer
	asked   map[string]int
	atOnce  int // number of open questions
	most    int // the largest value of atOnce
	changed chan struct{}
}

func newCluster(answers map[string][]answer) *cluster {
	return &cluster{answers: answers, asked: map[string]int{}, changed: make(chan struct{}, 1)}
}

// Pod implements PodLookup.
func (c *cluster) Pod(ctx context.Context, namespace, name string, addr netip.Addr) (bool, bool, error) {
	c.mu.Lock()
	key := fmt.Sprintf("%s/%s@%v", namespace, name, addr)
	all := c.answers[key]
	if len(all) == 0 {
		all = []answer{{err: errors.New("no answer was prepared")}}
	}
	a := all[min(c.asked[key], len(all)-1)]
	c.asked[key]++
	c.atOnce++
	c.most = max(c.most, c.atOnce)
	c.mu.Unlock()
	signal(c.changed)
	if a.hangs {
		<-ctx.Done()
		a.err = ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.atOnce--
	return a.exists, a.terminating, a.err
}

// times returns the number of questions about a pod.
func (c *cluster) times(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[key]
}

// until waits for a condition of the cluster.
func (c *cluster) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// ask starts a Reconciler on a Service without endpoints, except those in left. The Reconciler searches for the
// connections to all of them.
func ask(t *testing.T, c *cluster, short periods, gone []byte, left ...byte) *rig {
	t.Helper()
	r := newRig(tableOf(api.TCP), c)
	r.audited = true
	r.confirmer.periods = short
	r.confirmer.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.pass(t, tableOf(api.TCP, append(slices.Clone(left), gone...)...), true)
	for _, b := range gone {
		r.exist[Key{Proto: api.TCP, Frontend: netip.MustParseAddrPort("10.96.0.10:53"), Endpoint: endpoint(b)}] = true
	}
	r.now = r.now.Add(time.Second)
	r.pass(t, tableOf(api.TCP, left...), true)
	r.expect(t, "before any answer", 1)
	return r
}

func endpoint(last byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, last}), 5353)
}

func pod(last byte) string { return fmt.Sprintf("ns/pod-%d@10.244.1.%d", last, last) }

func connection(last byte) string { return fmt.Sprintf("10.96.0.10:53/TCP>10.244.1.%d:5353", last) }

// reconcile waits for Wake and reconciles, until exactly the connections to the wanted endpoints have ended.
func (r *rig) reconcile(t *testing.T, want ...byte) {
	t.Helper()
	var all, ended []string
	for _, b := range want {
		all = append(all, connection(b))
	}
	slices.Sort(all)
	deadline := time.After(patience)
	for len(ended) < len(all) {
		select {
		case <-r.Wake():
		case <-deadline:
			t.Fatalf("not within %v: ended %v, want %v", patience, ended, all)
		}
		r.now = r.now.Add(time.Second)
		r.Reconcile(t.Context())
		ended = append(ended, r.ended...)
	}
	if slices.Sort(ended); !slices.Equal(ended, all) {
		t.Errorf("ended %v, want %v", ended, all)
	}
}

var short = periods{deadline: patience, firstPause: time.Millisecond, longestPause: 2 * time.Millisecond}

// TestAnswers: a connection ends if its pod is gone, however long the answer took. It continues if the pod lives.
func TestAnswers(t *testing.T) {
	alive, gone, ending, failed := answer{exists: true}, answer{}, answer{exists: true, terminating: true}, answer{err: errors.New("injected")}
	c := newCluster(map[string][]answer{
		pod(1): {gone},
		pod(2): {failed, failed, gone},
		pod(3): {ending, failed, ending, gone},
		pod(4): {alive, gone}, // the first answer is out of date
		pod(5): {alive},
		pod(6): {failed, alive},
	})
	r := ask(t, c, short, []byte{1, 2, 3, 4, 5, 6}, 7)
	r.reconcile(t, 1, 2, 3, 4)
	c.until(t, "the agent asks twice about pods that live", func() bool { return c.times(pod(5)) == 2 && c.times(pod(6)) == 3 })
	// The answers may still be on their way.
	for deadline := time.Now().Add(patience); r.confirmer.busy(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there are still questions")
		}
	}
	if c.times(pod(5)) != 2 || c.times(pod(1)) != 1 {
		t.Errorf("asked again after the last answer: %v", c.asked)
	}
	r.now = r.now.Add(time.Second)
	if n := r.searches; r.Reconcile(t.Context()) != 0 || r.searches != n {
		t.Error("searched for connections to pods that live")
	}
}

// TestHangingQuestion: a question without an answer does not delay other questions.
func TestHangingQuestion(t *testing.T) {
	c := newCluster(map[string][]answer{pod(1): {{hangs: true}}, pod(2): {{hangs: true}}, pod(3): {{}}})
	r := ask(t, c, periods{deadline: time.Hour, firstPause: time.Hour, longestPause: time.Hour}, []byte{1, 2}, 3, 4)
	c.until(t, "both questions hang", func() bool { return c.times(pod(1)) == 1 && c.times(pod(2)) == 1 })
	r.exist[Key{Proto: api.TCP, Frontend: netip.MustParseAddrPort("10.96.0.10:53"), Endpoint: endpoint(3)}] = true
	r.now = r.now.Add(time.Second)
	r.pass(t, tableOf(api.TCP, 4), true)
	r.reconcile(t, 3)
	if c.times(pod(1)) != 1 || c.times(pod(2)) != 1 {
		t.Errorf("the others: %v", c.asked)
	}
}

// TestManyHangingQuestions: more questions hang than may be open at a time. Each makes room for others at its deadline.
func TestManyHangingQuestions(t *testing.T) {
	answers := map[string][]answer{}
	var gone []byte
	for b := range byte(2*maxInFlight + 1) {
		gone = append(gone, b+1)
		answers[pod(b+1)] = []answer{{hangs: true}, {}}
	}
	c := newCluster(answers)
	r := ask(t, c, periods{deadline: 20 * time.Millisecond, firstPause: time.Millisecond, longestPause: time.Millisecond}, gone, 200)
	r.reconcile(t, gone...)
	if c.most > maxInFlight {
		t.Errorf("%d questions at a time, want at most %d", c.most, maxInFlight)
	}
}

// TestRightAgain: an endpoint that returns while the question about its pod is open keeps its connections. When it
// leaves again, there is a new question.
func TestRightAgain(t *testing.T) {
	c := newCluster(map[string][]answer{pod(1): {{hangs: true}, {}}})
	r := ask(t, c, periods{deadline: time.Hour, firstPause: time.Hour, longestPause: time.Hour}, []byte{1}, 2)
	c.until(t, "the question", func() bool { return c.times(pod(1)) == 1 })
	r.now = r.now.Add(time.Second)
	r.pass(t, tableOf(api.TCP, 1, 2), true)
	if r.confirmer.busy() {
		t.Error("the connection is right and still asked about")
	}
	r.now = r.now.Add(time.Second)
	r.pass(t, tableOf(api.TCP, 2), true)
	r.reconcile(t, 1)
	if c.times(pod(1)) != 2 {
		t.Errorf("asked %d times, want two", c.times(pod(1)))
	}
}

// TestRightAgainConfirmed: as TestRightAgain, but the answer has arrived and has not been used.
func TestRightAgainConfirmed(t *testing.T) {
	c := newCluster(map[string][]answer{pod(1): {{}}})
	r := ask(t, c, short, []byte{1}, 2)
	select {
	case <-r.Wake():
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	r.now = r.now.Add(time.Second)
	r.pass(t, tableOf(api.TCP, 1, 2), true)
	r.expect(t, "the endpoint is back", 1)
}

// TestGivenUp: connections to a pod without any answer are kept, and the questions end.
func TestGivenUp(t *testing.T) {
	c := newCluster(map[string][]answer{pod(1): {{err: errors.New("injected")}}})
	r := ask(t, c, short, []byte{1}, 2)
	c.until(t, "the last question", func() bool { return c.times(pod(1)) == maxTries })
	for deadline := time.Now().Add(patience); r.confirmer.busy(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there are still questions")
		}
	}
	r.Reconcile(t.Context())
	r.expect(t, "no answer", 1)
	if n := c.times(pod(1)); n != maxTries {
		t.Errorf("asked %d times, want %d", n, maxTries)
	}
}

// deniedError is the error of an agent without the right to read pods.
type deniedError struct{ error }

func (deniedError) Denied() bool { return true }

// TestDenied: without the right to ask, connections are kept, and there is no second question.
func TestDenied(t *testing.T) {
	c := newCluster(map[string][]answer{pod(1): {{err: fmt.Errorf("look: %w", deniedError{errors.New("injected")})}}})
	r := ask(t, c, short, []byte{1}, 2)
	c.until(t, "the question", func() bool { return c.times(pod(1)) == 1 })
	for deadline := time.Now().Add(patience); r.confirmer.busy(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there are still questions")
		}
	}
	r.Reconcile(t.Context())
	if r.expect(t, "no right", 1); c.times(pod(1)) != 1 {
		t.Errorf("asked %d times", c.times(pod(1)))
	}
}

// TestNoLookup: without a PodLookup, unconfirmed connections are kept.
func TestNoLookup(t *testing.T) {
	r := newRig(tableOf(api.TCP, 1, 2), nil)
	r.exist[Key{Proto: api.TCP, Frontend: netip.MustParseAddrPort("10.96.0.10:53"), Endpoint: endpoint(1)}] = true
	r.pass(t, tableOf(api.TCP, 2), true)
	if r.expect(t, "one left", 1); r.confirmer.busy() {
		t.Error("a question that is never asked")
	}
}
