package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// A follower watches --settings-dir, and checks whether an agent can run with changed settings. It outlives the runs of
// an agent.
type follower struct {
	env     command.Env
	flags   *config.Flags
	log     *slog.Logger
	every   time.Duration // between two checks
	taken   string        // the settings of the current run
	refused string        // settings that an agent cannot run with
	why     error         // the reason; nil if no settings are refused
	tried   time.Time     // when the refused settings were last tried
}

const (
	lookAtSettings = 2 * time.Second  // the kubelet needs up to a minute to write them
	tryAgain       = 30 * time.Second // the API server may be away for a moment
)

// newFollower starts with the current settings. The caller loads the flags afterwards.
func newFollower(e command.Env, flags *config.Flags) (*follower, error) {
	taken, err := flags.Settings()
	return &follower{env: e, flags: flags, every: lookAtSettings, taken: taken}, err
}

// settingsChanged ends a run, and carries the next run's configuration.
type settingsChanged struct{ cfg *config.Config }

func (settingsChanged) Error() string { return "the settings have changed" }

// run ends with settingsChanged when new settings are valid. It reports refused settings by event.
func (f *follower) run(ctx context.Context, running *config.Config, board *status.Board, event func(node, reason, message string)) error {
	say := func() {
		if f.why == nil {
			board.Set(status.SettingsRefused, "")
			return
		}
		f.log.Error("new settings are refused; the former ones stay", "err", f.why)
		board.Set(status.SettingsRefused, f.why.Error())
		event(running.NodeName, status.SettingsRefused, f.why.Error())
	}
	say() // the result of the previous run
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		before := f.why
		cfg := f.look(ctx, running)
		if cfg != nil && ctx.Err() == nil {
			f.log.Info("the settings have changed", "mode", cfg.Mode, "apiServer", cfg.Master)
			return settingsChanged{cfg}
		}
		if ctx.Err() == nil && text(before) != text(f.why) {
			say()
		}
	}
}

// look returns a changed configuration that an agent can run with, else nil.
func (f *follower) look(ctx context.Context, running *config.Config) *config.Config {
	now, err := f.flags.Settings()
	if err != nil {
		f.why = err
		return nil
	}
	switch {
	case now == f.taken:
		f.refused, f.why = "", nil // the running settings are back
		return nil
	case now == f.refused && time.Since(f.tried) < tryAgain:
		return nil
	}
	cfg, err := f.flags.Load()
	if err == nil {
		err = f.tryOut(ctx, running, cfg)
	}
	if err != nil {
		f.refuse(now, err)
		return nil
	}
	f.taken, f.refused, f.why = now, "", nil
	return cfg
}

// refuse records settings that do not work.
func (f *follower) refuse(settings string, why error) {
	f.refused, f.why, f.tried = settings, why, time.Now()
}

// tryOut checks whether an agent can run with cfg. A changed mode, pod network or API server must work here.
func (f *follower) tryOut(ctx context.Context, running, cfg *config.Config) error {
	if cfg.Master != running.Master {
		if err := kube.Reach(ctx, cfg.Connection(f.env.UserAgent(""))); err != nil {
			return err
		}
	}
	if err := tunnel.Probe(ctx, plan.Way(cfg.PodNetwork)); err != nil && cfg.PodNetwork != running.PodNetwork {
		return fmt.Errorf("--pod-network %s: %w", cfg.PodNetwork, err)
	}
	if cfg.Mode == running.Mode || cfg.Mode == datapath.None {
		return nil
	}
	dp, err := modes.All().Choose(ctx, f.log, cfg.Mode, (&agent{cfg: cfg, log: f.log}).modeOptions())
	if err != nil {
		return err
	}
	dp.Close()
	return nil
}

// next returns the configuration of the next run after one that ended with err, and whether there is one. former is the
// last configuration that started.
func (f *follower) next(err error, now, former *config.Config) (*config.Config, bool) {
	var changed settingsChanged
	switch {
	case errors.As(err, &changed):
		return changed.cfg, true
	case former != nil && now != former:
		f.refuse(f.taken, err)
		f.tried = f.tried.Add(time.Hour) // each try would be a restart
		f.taken = ""                     // the running settings differ from the directory
		return former, true
	}
	return nil, false
}
