package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// The elections run in virtual time, so the machine's load does not affect the leader.

// candidate takes part in an election until its test ends.
type candidate struct {
	leading chan context.Context // receives at the start of each term
	hold    chan struct{}        // lead returns only after it is closed
	release func()               // closes hold
	cancel  func()               // ends the context of Elect
	stop    func()               // calls both, and waits for the end
	err     error                // of Elect, after stop
	says    Standing
}

// stand starts a candidate. leaders counts the current leaders.
func stand(t *testing.T, client *fake.Clientset, name string, leaders *atomic.Int32) *candidate {
	t.Helper()
	c := &candidate{leading: make(chan context.Context, 10), hold: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	e := Election{
		Log: slog.New(slog.DiscardHandler), Client: client, Namespace: "kube-system", Name: "fairway-controller", Identity: name,
		Duration: 3 * time.Second, Renew: 2 * time.Second, Retry: 100 * time.Millisecond, Standing: &c.says,
	}
	c.release = sync.OnceFunc(func() { close(c.hold) })
	c.cancel = cancel
	go func() {
		defer close(done)
		c.err = Elect(ctx, e, func(ctx context.Context) error {
			if n := leaders.Add(1); n != 1 {
				t.Errorf("%d leaders", n)
			}
			c.leading <- ctx
			<-ctx.Done()
			<-c.hold
			leaders.Add(-1)
			return nil
		})
	}()
	c.stop = func() {
		c.release()
		cancel()
		select {
		case <-done:
		case <-time.After(deadline):
			t.Error("Elect did not end with its context")
		}
	}
	t.Cleanup(c.stop)
	return c
}

// leads waits until the candidate leads and returns the context of its term.
func (c *candidate) leads(t *testing.T, when string) context.Context {
	t.Helper()
	select {
	case ctx := <-c.leading:
		return ctx
	case <-time.After(deadline):
		t.Fatalf("%s: no leader in %v", when, deadline)
		return nil
	}
}

// TestElect: at most one candidate leads. The next one follows when the leader has ended, and not while the leader is
// ending, even if that takes longer than a Lease.
func TestElect(t *testing.T) { synctest.Test(t, testElect) }

func testElect(t *testing.T) {
	var leaders atomic.Int32
	client, answer := fake.NewClientset(), make(chan struct{})
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-answer
		return false, nil, nil
	})
	first := stand(t, client, "first", &leaders)
	synctest.Wait() // until it waits for the API server's answer
	if first.says.Ready() == nil || first.says.Leader() {
		t.Error("a candidate that has read nothing is ready")
	}
	close(answer)
	term := first.leads(t, "the first")
	second := stand(t, client, "second", &leaders)
	looks(t, client, 10)
	for _, c := range []*candidate{first, second} {
		if err := errors.Join(c.says.Ready(), c.says.Live()); err != nil || c.says.Leader() != (c == first) {
			t.Errorf("%v; leader: %v", err, c.says.Leader())
		}
	}
	if len(second.leading) > 0 || term.Err() != nil {
		t.Fatal("the second leads beside the first")
	}
	first.cancel()
	waitFor(t, term.Done(), "the end of the first's term")
	looks(t, client, 60) // both look every 0.1 s, so this is about a Lease's 3 s
	if len(second.leading) > 0 {
		t.Fatal("the second leads before the first has returned")
	}
	first.stop()
	if first.err != nil {
		t.Errorf("Elect: %v", first.err)
	}
	second.leads(t, "after the end of the first")
}

// looks waits until candidates have looked at the Lease this many times from now on.
func looks(t *testing.T, client *fake.Clientset, times int) {
	t.Helper()
	count := func() (n int) {
		for _, a := range client.Actions() {
			if a.GetVerb() == "get" {
				n++
			}
		}
		return n
	}
	start := count()
	until(t, "looks at the Lease", func() bool { return count() >= start+times })
}

// TestLostLease: a leader that cannot renew its Lease stops, then gives the Lease back, and then stands again.
func TestLostLease(t *testing.T) { synctest.Test(t, testLostLease) }

func testLostLease(t *testing.T) {
	var leaders atomic.Int32
	var away atomic.Bool
	client := fake.NewClientset()
	client.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		holder := a.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).Spec.HolderIdentity
		switch {
		case (holder == nil || *holder == "") && leaders.Load() != 0:
			t.Error("the Lease is given back while lead runs")
		case holder != nil && *holder != "" && away.Load():
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	c := stand(t, client, "only", &leaders)
	term := c.leads(t, "at first")
	away.Store(true)
	waitFor(t, term.Done(), "the end of the term")
	<-time.After(200 * time.Millisecond) // time for a Lease that is given back too soon
	if err := c.says.Live(); err != nil {
		t.Errorf("just after the end of its term: %v", err)
	}
	<-time.After(2 * stuckAfter) // virtual time
	if c.says.Live() == nil {
		t.Error("a leader that does not return is live")
	}
	c.release()
	until(t, "lead to return", func() bool { return leaders.Load() == 0 })
	if err := c.says.Live(); err != nil {
		t.Errorf("it has returned: %v", err)
	}
	away.Store(false)
	c.leads(t, "again")
}

// TestLeadReturns: Elect returns lead's result, and gives the Lease back.
func TestLeadReturns(t *testing.T) { synctest.Test(t, testLeadReturns) }

func testLeadReturns(t *testing.T) {
	client := fake.NewClientset()
	failed := errors.New("failed")
	e := Election{Log: slog.New(slog.DiscardHandler), Client: client, Namespace: "kube-system", Name: "fairway-controller", Identity: "a"}
	if err := Elect(t.Context(), e, func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Elect: %v, want %v", err, failed)
	}
	var leaders atomic.Int32
	stand(t, client, "b", &leaders).leads(t, "without a wait for the end of the Lease")
}
