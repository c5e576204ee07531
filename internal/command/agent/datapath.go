package agent

import (
	"context"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/flow"
)

// openDatapath opens the datapath of --proxy-mode and probes it before anything else starts. The datapath takes over
// from the previous one. In mode none it returns nil if the node has no rules of Fairway, else the release that keeps
// them until another proxy has taken over.
func (a *agent) openDatapath(ctx context.Context, says *agentStatus) (dp datapath.Datapath, release *takeover.Release, err error) {
	if a.gate = nil; a.cfg.NetworkPolicy {
		a.gate = &flow.Gate{}
	}
	if a.cfg.Mode == datapath.None {
		if release = a.openRelease(ctx, says); release == nil {
			return nil, nil, nil
		}
		return release, release, nil
	}
	dp, err = modes.All().Choose(ctx, a.log, a.cfg.Mode, a.modeOptions())
	if err != nil {
		return nil, nil, err
	}
	a.cfg.Mode = dp.Info().Name // "auto" is resolved here
	return takeover.New(takeover.Config{
		Log: a.log, Datapath: dp, Others: modes.All().Others(ctx, a.log, a.cfg.Mode, a.modeOptions()),
		KubeProxy: &takeover.KubeProxy{}, Replace: a.cfg.ReplaceKubeProxy, Found: says.found,
	}), nil, nil
}
