package layer2

import (
	"context"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// restless are objects that change all the time.
type restless struct{ work time.Duration }

func (restless) Synced() <-chan struct{}                          { c := make(chan struct{}); close(c); return c }
func (r restless) Dirty() <-chan struct{}                         { return r.Synced() }
func (r restless) Input() announce.Input                          { <-time.After(r.work); return announce.Input{} }
func (restless) Voters() election.Voters                          { return election.Voters{} }
func (restless) SetVoters(context.Context, election.Voters) error { return nil }

// TestRestlessNode: a Node object that changes all the time does not keep a core busy.
func TestRestlessNode(t *testing.T) {
	for _, c := range []struct {
		work     time.Duration // of a decision
		min, max int           // decisions in 2 s
	}{{0, 10, 21}, {50 * time.Millisecond, 2, 6}} {
		s := &Speaker{cfg: Config{Source: restless{c.work}}, readings: make(chan reading)}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		done := make(chan error, 1)
		go func() { done <- s.follow(ctx) }()
		n := 0
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-s.readings:
				n++
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n < c.min || n > c.max {
			t.Errorf("%d decisions of %v in 2 s, want %d to %d", n, c.work, c.min, c.max)
		}
	}
}
