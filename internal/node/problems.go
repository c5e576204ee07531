package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Reasons of problems, of events and of the metric.
const (
	reasonPodCIDR     = "PodCIDRRefused"   // a podCIDR would do harm
	reasonUnreachable = "NodeUnreachable"  // no way to a node's pods
	reasonRoute       = "RouteNotReplaced" // another program has a route to a podCIDR
)

// A problem is something that no further try mends.
type problem struct {
	node    string // that it is about; empty: about this machine
	reason  string
	message string // one line for a person
}

// maxEvents is how many problems of one Sync become events: a cluster whose nodes are all
// wrong is told so by each agent, and the API server has to bear it.
const maxEvents = 20

// newRoutes counts the routes to other nodes' podCIDRs by how they lead there.
func newRoutes(registry prometheus.Registerer) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "pod_network_routes",
		Help: "Routes to other nodes' podCIDRs, plain (direct) or through the tunnel (vxlan)",
	}, []string{"way"})
	if registry != nil {
		registry.MustRegister(g)
	}
	return g
}

// countRoutes sets the metric.
func (n *Network) countRoutes(p *plan) {
	direct, tunnel := 0, 0
	for _, r := range p.routes {
		switch {
		case r.onLink:
			tunnel++
		case r.via.IsValid():
			direct++
		}
	}
	n.routes.WithLabelValues("direct").Set(float64(direct))
	n.routes.WithLabelValues("vxlan").Set(float64(tunnel))
}

func newProblems(registry prometheus.Registerer) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "fairway", Name: "pod_network_problems",
		Help: "Problems of the pod network, such as podCIDRs that are refused",
	}, []string{"reason"})
	if registry != nil {
		registry.MustRegister(g)
	}
	return g
}

// report logs every problem once, and again when it was away in between, sends events about
// those of nodes, and counts all.
func (n *Network) report(problems []problem) {
	counts := map[string]int{reasonPodCIDR: 0, reasonUnreachable: 0, reasonRoute: 0}
	now := make(map[problem]bool, len(problems))
	events := 0
	for _, p := range problems {
		now[p] = true
		counts[p.reason]++
		if n.reported[p] {
			continue
		}
		n.Log.Warn("pod network: " + p.message)
		if n.Event != nil && p.node != "" && events < maxEvents {
			events++
			n.Event(p.node, p.reason, p.message)
		}
	}
	n.reported = now
	for reason, count := range counts {
		n.problems.WithLabelValues(reason).Set(float64(count))
	}
}
