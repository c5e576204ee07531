package speaker

import (
	"log/slog"
	"sync"
	"time"
)

// readyWithin is the default of --ready-within: how long an unreachable router or voter keeps a speaker from being
// ready.
const readyWithin = 30 * time.Second

// A gate delays a speaker's readiness during a rollout until this speaker has taken over from the previous one. It
// opens once: a session lost later must not stop the rollout.
type gate struct {
	log   *slog.Logger
	until time.Time // the gate opens at this time at the latest
	parts []func() error
	mu    sync.Mutex
	open  bool
}

func newGate(log *slog.Logger, within time.Duration, parts ...func() error) *gate {
	return &gate{log: log, until: time.Now().Add(within), parts: parts}
}

// check returns the reason why the gate is closed, or nil.
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
