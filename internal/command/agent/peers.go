package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/service"
)

// withDead returns what tables are compiled for: view, and which nodes are dead as the speaker of
// this node says.
func withDead(view func() service.Node, peers *liveness.Follower) func() service.Node {
	return func() service.Node {
		n := view()
		n.Dead = peers.Dead()
		return n
	}
}

// NewDeadNodes counts what peers says.
func NewDeadNodes(peers *liveness.Follower) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "dead_nodes",
		Help: "Nodes that their peers declare dead, so that endpoints there get no new connections while others answer",
	}, func() float64 { return float64(len(peers.Dead())) })
}
