package proxy

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestApplied: the published table is the table in the kernel. A failed pass publishes nothing, and a late subscriber
// misses nothing.
func TestApplied(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	h := start(t, func() error {
		if failing.Load() {
			return errors.New("injected")
		}
		return nil
	})
	early := h.applied.Subscribe()
	name := h.api.set(1)
	close(h.api.synced)
	h.pass(t)
	h.pass(t) // the first pass has failed
	if got := h.applied.Table(); got != nil {
		t.Errorf("a pass that failed published %v", got)
	}
	failing.Store(false)
	published(t, h, early, name)
	late := h.applied.Subscribe()
	select {
	case <-late:
	default:
		t.Error("a late subscriber is not woken for the table that there is")
	}
	next := h.api.set(2)
	published(t, h, early, next)
	published(t, h, late, next)
	if d := service.Diff(h.dump(), h.applied.Table()); len(d) != 0 {
		t.Errorf("the kernel differs from what was published: %v", d)
	}
}

// published waits for a wake-up after which the table contains the Service.
func published(t *testing.T, h *harness, wake <-chan struct{}, name api.Name) {
	t.Helper()
	for deadline := time.After(30 * time.Second); ; {
		select {
		case <-h.syncs:
		case <-wake:
			if h.applied.Table().Entry(name) != nil {
				return
			}
		case <-deadline:
			t.Fatal("not published within 30 s")
		}
	}
}
