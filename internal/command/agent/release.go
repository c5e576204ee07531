package agent

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
)

// runs runs the agent; a run that ends because another proxy has taken over is followed by
// one that finds nothing of ours, one that ends because the settings have changed by one that
// has them. If that cannot begin, the former settings count again.
func (a *agent) runs(ctx context.Context) error {
	cfg, worked := a.cfg, (*config.Config)(nil)
	for {
		run := *cfg
		one := &agent{cfg: &run, log: a.log, env: a.env, published: a.published, settings: a.settings}
		if run.LogJSON != a.cfg.LogJSON {
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

// openRelease opens, for --proxy-mode none, the mode whose rules still carry Services here:
// rules that nobody updates would lead to pods that are gone. Nil: there are none.
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

// releasePending says that rules of a mode are waiting for another proxy.
func releasePending(mode string) string {
	return "--proxy-mode none, but rules of mode " + mode + " are here and no other proxy has taken over; they are kept up to date until then [fairway agent --cleanup removes them]"
}

// watchRelease ends the run when a Release has ended, and says so as a metric and an event until then. Nil: there is none.
func (a *agent) watchRelease(ctx context.Context, registry prometheus.Registerer, events *kube.Recorder, release *takeover.Release) error {
	if release == nil {
		return nil
	}
	registry.MustRegister(NewReleasePending())
	events.NodeEvent(a.cfg.NodeName, status.HandoverPending, releasePending(a.cfg.Mode))
	return release.Wait(ctx)
}

// NewReleasePending is the metric of such a mode.
func NewReleasePending() prometheus.Gauge {
	pending := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fairway_release_pending",
		Help: "1 while --proxy-mode none keeps rules of a former mode up to date, because no other proxy has taken over",
	})
	pending.Set(1)
	return pending
}
