package speaker

import (
	"log/slog"
	"sync"
	"time"
)

// readyWithin is how long a router or voter that does not answer keeps a speaker from being ready, if nobody says otherwise.
const readyWithin = 30 * time.Second

// A gate says when the next speaker of a rollout may end: once this one does what the one before it did. It opens
// once: what is lost later replacing speakers mends in no way, and it must not hold up the rollout that does.
type gate struct {
	log   *slog.Logger
	until time.Time // it opens then at the latest
	parts []func() error
	mu    sync.Mutex
	open  bool
}

func newGate(log *slog.Logger, within time.Duration, parts ...func() error) *gate {
	return &gate{log: log, until: time.Now().Add(within), parts: parts}
}

// check returns why the gate is not open.
func (g *gate) check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return nil
	}
	for _, part := range g.parts {
		err := part()
		if err == nil {
			continue
		}
		if time.Now().Before(g.until) {
			return err
		}
		g.log.Warn("ready all the same: whoever replaces speakers does not wait for this any longer", "err", err)
		break
	}
	g.open = true
	return nil
}
