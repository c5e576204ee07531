package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/ipc/liveness"
)

// NewDeadNodes returns the metric of dead nodes.
func NewDeadNodes(peers *liveness.Follower) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "dead_nodes",
		Help: "Nodes that their peers declare dead, so that endpoints there get no new connections while others answer",
	}, func() float64 { return float64(len(peers.Dead())) })
}
