package inspect

import (
	"context"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/operate/doctor"
	"github.com/fairway-net/fairway/internal/operate/doctor/probe"
)

// examine collects facts of this node and judges them.
func examine(ctx context.Context, a *agent.Tool) (found output.Value, works bool, err error) {
	podNetwork := a.Config.PodNetwork
	if !a.Config.ConnectsPods() {
		podNetwork = ""
	}
	r := doctor.Examine(probe.Look(ctx, probe.Config{
		Node: a.Config.NodeName, Mode: a.Config.Mode, PodNetwork: podNetwork,
		Connection: a.Connection(), Healthz: a.Config.Healthz.Port(), Metrics: a.Config.Metrics.Port(),
	}))
	return r, !r.Failed(), nil
}
