package node

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// reportAfter is the time before a problem of a reason is reported. A new node at first has no key, and its podCIDR no
// router.
var reportAfter = map[string]time.Duration{plan.ReasonNoKey: time.Minute, plan.ReasonNotAnnounced: time.Minute}

// A lastReport is the state of a problem that lasts.
type lastReport struct {
	dueAt      time.Time // earliest time to report; zero: at once
	isReported bool
}

// maxEvents limits the events of one Sync. If all nodes of a cluster are wrong, each agent says so, and the API server
// has to bear it.
const maxEvents = 20

// newRoutes makes the metric of routes to other nodes' podCIDRs, by way.
func newRoutes(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_routes", "way", "Routes to other nodes' podCIDRs, by their way")
}

// newEgress makes the metric of pods with egress addresses, by the node through which they leave.
func newEgress(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_egress_pods", "to", "Pods' addresses that leave by an egress address, by this node, another node, or nobody")
}

// countEgress sets the metric.
func (n *Network) countEgress(e *plan.Egress) {
	if e == nil {
		return
	}
	for to, count := range map[string]int{"here": len(e.Here), "node": len(e.Via), "nobody": len(e.Unroutable)} {
		n.leaving.WithLabelValues(to).Set(float64(count))
	}
}

// newGauge returns a metric with one label; registry may be nil.
func newGauge(registry prometheus.Registerer, name, label, help string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fairway", Name: name, Help: help}, []string{label})
	if registry != nil {
		registry.MustRegister(g)
	}
	return g
}

// countRoutes sets the metric.
func (n *Network) countRoutes(p *plan.Plan) {
	counts := map[plan.Way]int{}
	for _, r := range p.Routes {
		counts[r.By]++
	}
	for label, way := range map[string]plan.Way{"direct": plan.WayRoutes, "vxlan": plan.WayVXLAN, "wireguard": plan.WayWireGuard, "bgp": plan.WayBGP} {
		n.routes.WithLabelValues(label).Set(float64(counts[way]))
	}
}

// present returns the first reported problem, and how many more there are; empty: there is none.
func (n *Network) present(problems []plan.Problem) (first string) {
	count := 0
	for _, p := range problems {
		if n.reported[p].isReported {
			first = cmp.Or(first, p.Message)
			count++
		}
	}
	if count > 1 {
		return fmt.Sprintf("%s (and %d more: the agent's log has all)", first, count-1)
	}
	return first
}

func newProblems(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_problems", "reason", "Problems of the pod network, such as podCIDRs that are refused")
}

// report logs each problem once, and again if it was away in between. It sends events about nodes' problems, and counts
// all problems.
func (n *Network) report(problems []plan.Problem) {
	counts := map[string]int{plan.ReasonPodCIDR: 0, plan.ReasonUnreachable: 0, plan.ReasonRoute: 0, plan.ReasonNoKey: 0, plan.ReasonGateway: 0, plan.ReasonNotAnnounced: 0, plan.ReasonOverShare: 0, plan.ReasonConfigOrder: 0, plan.ReasonEgressKept: 0}
	now := make(map[plan.Problem]lastReport, len(problems))
	events := 0
	for _, p := range problems {
		counts[p.Reason]++
		seen, lasts := n.reported[p]
		if !lasts {
			seen.dueAt = n.now().Add(reportAfter[p.Reason])
		}
		say := !seen.isReported && !n.now().Before(seen.dueAt)
		seen.isReported = seen.isReported || say
		now[p] = seen
		if !say {
			continue
		}
		n.Log.Warn("pod network: " + p.Message)
		if n.Event != nil && p.Node != "" && events < maxEvents {
			events++
			n.Event(p.Node, p.Reason, p.Message)
		}
	}
	n.reported = now
	if n.Now != nil {
		n.Now(n.present(problems))
	}
	for reason, count := range counts {
		n.problems.WithLabelValues(reason).Set(float64(count))
	}
}
