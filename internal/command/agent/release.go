package agent

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/operate/status"
)

// runs runs the agent until it ends for good. A run without rules follows a run that ends because another proxy has
// taken over. A run with new settings follows a run that ends because the settings have changed. If it cannot start,
// the previous settings return.
func (a *agent) runs(ctx context.Context) error {
	cfg, worked := a.cfg, (*config.Config)(nil)
	for {
		run := *cfg
		one := &agent{cfg: &run, log: a.log, env: a.env, published: a.published, settings: a.settings}
		if run.LogJSON != a.cfg.LogJSON || run.LogLevel != a.cfg.LogLevel {
			one.log = newLog(a.env.Stderr, &run)
		}
		one.began = func() { worked = cfg }
		err := one.run(ctx)
		if ctx.Err() != nil || err == nil {
			return err
		}
		if errors.Is(err, takeover.ErrReleased) {
			continue
		}
		next, ok := a.settings.next(err, cfg, worked)
		if !ok {
			return err
		}
		cfg = next
	}
}

// openRelease opens the mode whose rules still carry Services here, for --proxy-mode none. Without an agent these rules
// would soon lead to dead pods. It returns nil if there are none.
func (a *agent) openRelease(ctx context.Context, says *agentStatus) *takeover.Release {
	held, err := modes.All().Found(ctx, a.modeOptions())
	if err != nil {
		a.log.Debug("not looking for rules of our modes: no mode works here", "err", err)
	}
	if len(held) == 0 {
		return nil
	}
	dp := held[0]
	a.cfg.Mode = dp.Info().Name
	a.log.Warn("--proxy-mode none, but rules of one of our modes are on this node and no other proxy has taken over: they are kept up to date until its rules are there [fairway agent --cleanup removes them now]",
		"mode", a.cfg.Mode)
	says.board.Set(status.HandoverPending, releasePending(a.cfg.Mode))
	return takeover.NewRelease(a.log, takeover.New(takeover.Config{Log: a.log, Datapath: dp, Others: held[1:]}))
}

// releasePending returns the message about rules that wait for another proxy.
func releasePending(mode string) string {
	return "--proxy-mode none, but rules of mode " + mode + " are here and no other proxy has taken over; they are kept up to date until then [fairway agent --cleanup removes them]"
}

// newRelease ends the run when the release has ended. Until then a metric and an event report it. It ends at once if
// release is nil.
func newRelease(b *base, release *takeover.Release) part {
	if release == nil {
		return func(context.Context) error { return nil }
	}
	b.registry.MustRegister(NewReleasePending())
	return func(ctx context.Context) error {
		b.nodeEvent(status.HandoverPending, releasePending(b.cfg.Mode))
		return release.Wait(ctx)
	}
}

// NewReleasePending returns the metric of a pending release.
func NewReleasePending() prometheus.Gauge {
	pending := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fairway_release_pending",
		Help: "1 while --proxy-mode none keeps rules of a former mode up to date, because no other proxy has taken over",
	})
	pending.Set(1)
	return pending
}
