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
	"github.com/fairway-net/fairway/internal/podnetwork/node"
)

// A follower notices that the settings in --settings-dir have changed, and finds out whether
// an agent can run with them. It outlives the runs of an agent.
type follower struct {
	env     command.Env
	flags   *config.Flags
	log     *slog.Logger
	every   time.Duration // between two looks
	taken   string        // the settings of the run that goes on
	refused string        // others that an agent cannot run with
	why     error         // why not; nil: none were refused
	tried   time.Time     // when
}

const (
	lookAtSettings = 2 * time.Second  // the kubelet needs a minute to write them
	tryAgain       = 30 * time.Second // an API server may be away for a moment
)

// newFollower follows from what is there now. The caller loads the flags after that.
func newFollower(e command.Env, flags *config.Flags) (*follower, error) {
	taken, err := flags.Settings()
	return &follower{env: e, flags: flags, every: lookAtSettings, taken: taken}, err
}

// settingsChanged ends a run: the next one has other settings.
type settingsChanged struct{ cfg *config.Config }

func (settingsChanged) Error() string { return "the settings have changed" }

// run ends with settingsChanged when there are settings that can be taken. event tells the
// cluster of those that cannot.
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
	say() // what the run before this one found out
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

// look returns the configuration to go on with, if it is another one and can be taken.
func (f *follower) look(ctx context.Context, running *config.Config) *config.Config {
	now, err := f.flags.Settings()
	if err != nil {
		f.why = err
		return nil
	}
	switch {
	case now == f.taken:
		f.refused, f.why = "", nil // back to what is running
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

// refuse remembers settings that do not work.
func (f *follower) refuse(settings string, why error) {
	f.refused, f.why, f.tried = settings, why, time.Now()
}

// tryOut finds out whether an agent can run with cfg: a mode, a pod network or an API server that is
// not that of the running agent has to work here.
func (f *follower) tryOut(ctx context.Context, running, cfg *config.Config) error {
	if cfg.Master != running.Master {
		if err := kube.Reach(ctx, cfg.Connection(f.env.UserAgent(""))); err != nil {
			return err
		}
	}
	if err := node.Probe(ctx, node.Way(cfg.PodNetwork)); err != nil && cfg.PodNetwork != running.PodNetwork {
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

// next returns the configuration for the run after one that has ended with err, and whether
// there is one: former is that of the last run that had begun to work.
func (f *follower) next(err error, now, former *config.Config) (*config.Config, bool) {
	var changed settingsChanged
	switch {
	case errors.As(err, &changed):
		return changed.cfg, true
	case former != nil && now != former:
		f.refuse(f.taken, err)
		f.tried = f.tried.Add(time.Hour) // each try would be a restart
		f.taken = ""                     // what runs is not what is in the directory
		return former, true
	}
	return nil, false
}
