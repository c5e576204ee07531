package modes

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath"
)

// TestHeld: which modes a command looks at, and which one the agent runs, or would run.
func TestHeld(t *testing.T) {
	broken, best, there := &fake{name: "broken", probe: errors.New("no such kernel")}, &fake{name: "best"}, &fake{name: "there", there: true}
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		registry            Registry
		mode, held, current string // empty: an error
	}{
		{registry(broken, best, there), "auto", "there", "there"},
		{registry(broken, best), "auto", "", "best"},
		{registry(broken, best, there), "best", "best", "best"},
		{registry(broken, best, there), "broken", "", ""},
		{registry(broken), "auto", "", ""},
	} {
		held, current := "", ""
		if all, err := c.registry.OpenHere(t.Context(), log, c.mode, Options{}); err == nil {
			for _, dp := range all {
				held += dp.Info().Name
			}
		}
		if dp, err := c.registry.Current(t.Context(), log, c.mode, Options{}); err == nil {
			current = dp.Info().Name
		}
		if held != c.held || current != c.current {
			t.Errorf("%s of %s: held %q, current %q; want %q, %q", c.mode, c.registry.names(), held, current, c.held, c.current)
		}
	}
}

// TestInfo: a mode is described without a probe, and none lacks nothing.
func TestInfo(t *testing.T) {
	r, log := registry(&fake{name: "broken", probe: errors.New("no such kernel")}), slog.New(slog.DiscardHandler)
	if info, err := r.Info(t.Context(), log, "broken", Options{}); err != nil || info.Name != "broken" {
		t.Errorf("a mode that does not work here: %+v, %v", info, err)
	}
	if info, err := r.Info(t.Context(), log, datapath.None, Options{}); err != nil || ^info.Capabilities.Algorithms != 0 {
		t.Errorf("the mode none: %+v, %v", info, err)
	}
	if _, err := r.Info(t.Context(), log, "magic", Options{}); err == nil {
		t.Error("a mode that does not exist is described")
	}
}
