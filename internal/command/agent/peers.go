package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/service"
)

// facts returns the function that combines the node with the dead nodes, as this node's speaker reports them.
func facts(view func() service.Node, peers *liveness.Follower) func() service.Facts {
	return func() service.Facts { return service.Facts{Node: view(), Dead: peers.Dead()} }
}

// NewDeadNodes returns the metric of dead nodes.
func NewDeadNodes(peers *liveness.Follower) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "dead_nodes",
		Help: "Nodes that their peers declare dead, so that endpoints there get no new connections while others answer",
	}, func() float64 { return float64(len(peers.Dead())) })
}
