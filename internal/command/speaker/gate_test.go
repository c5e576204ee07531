package speaker

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestGate: it opens when all parts are ready at one moment, stays open, and opens all the same when its time is over.
func TestGate(t *testing.T) {
	var voters, router error
	parts := []func() error{func() error { return voters }, func() error { return router }}
	log := slog.New(slog.DiscardHandler)
	g := newGate(log, time.Hour, parts...)
	voters, router = errors.New("no voters"), errors.New("no router")
	for range 2 {
		if err := g.check(); err == nil {
			t.Fatal("open before anything is ready")
		}
		voters = nil
	}
	if err := g.check(); err == nil || err.Error() != "no router" {
		t.Errorf("%v, want the router's", err)
	}
	router = nil
	if err := g.check(); err != nil {
		t.Errorf("not open: %v", err)
	}
	router = errors.New("it went later")
	if err := g.check(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if err := newGate(log, 0, parts...).check(); err != nil {
		t.Errorf("a dead router holds up a rollout for ever: %v", err)
	}
}
