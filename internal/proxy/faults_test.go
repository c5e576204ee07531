package proxy

import (
	"errors"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/docpage"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// unset deletes the i-th Service.
func (a *fakeSource) unset(i int) {
	n := a.set(i) // marks the Service as changed
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, n)
}

// TestMapEmptied: docs/troubleshooting.md shows the log of an agent after another program has emptied a map.
func TestMapEmptied(t *testing.T) {
	var empty atomic.Bool
	h := start(t, func() error { // in the loop's namespace, before each write
		if !empty.CompareAndSwap(true, false) {
			return nil
		}
		if out, err := exec.Command("nft", "flush map inet fairway frontends4").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return nil
	})
	const services = 5
	for i := range services {
		h.api.set(i)
	}
	close(h.api.synced)
	h.pass(t)
	<-h.health.synced
	empty.Store(true)
	h.api.unset(0)
	for end := time.After(30 * time.Second); h.log.Has("failures=1") != nil || h.log.Count("rules are up to date") < 2; {
		select {
		case <-h.syncs: // one pass deletes an element that is gone, and the next repairs
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatalf("it never works again:\n%s", h.log)
		}
	}
	h.stop()
	docpage.Check(t, "../../docs/troubleshooting.md", "kubectl -n kube-system logs fairway-agent-rk226", h.log.String())
}

// TestFaults: a tenth of all writes to the kernel fails, also in the middle of a transaction. In the end the kernel
// holds the table that the API asks for, whatever changed meanwhile.
func TestFaults(t *testing.T) {
	rng, faults := testnet.Random(t), testnet.Random(t) // one for each goroutine
	var failed atomic.Int32
	h := start(t, func() error {
		if faults.IntN(10) > 0 {
			return nil
		}
		failed.Add(1)
		return errors.New("injected")
	})
	close(h.api.synced)
	const services, rounds = 30, 150
	for range rounds {
		for range 1 + rng.IntN(3) {
			if i := rng.IntN(services); rng.IntN(2) == 0 {
				h.api.set(i)
			} else {
				h.api.unset(i)
			}
		}
		h.pass(t)
	}
	last := h.api.set(services) // a table with this Service has all changes
	for deadline := time.Now().Add(time.Minute); h.done() == nil || h.done().Entry(last) == nil; {
		select {
		case <-h.syncs:
		case <-time.After(10 * time.Millisecond): // the kernel may be done by now
		}
		if time.Now().After(deadline) {
			t.Fatal("no pass succeeds")
		}
	}
	if failed.Load() == 0 {
		t.Error("no write failed: this proves nothing")
	}
	if d := service.Diff(h.dump(), h.done()); len(d) != 0 {
		t.Errorf("after %d failed writes the kernel differs: %v", failed.Load(), d)
	}
}
