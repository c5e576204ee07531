package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons of problems, of events and of the metric.
const (
	reasonPodCIDR     = "PodCIDRRefused"   // a podCIDR would do harm
	reasonUnreachable = "NodeUnreachable"  // no way to a node's pods
	reasonRoute       = "RouteNotReplaced" // another program has a route to a podCIDR
	reasonNoKey       = "NotEncrypted"     // WireGuard does not lead to a node, and nothing else may

	reasonGateway = "EgressGatewayUnreachable" // pods cannot get to the node that announces their egress address

	reasonNotAnnounced = "NotAnnounced" // no router leads to a podCIDR
)

// A problem is something that no further try mends.
type problem struct {
	node    string // that it is about; empty: about this machine
	reason  string
	message string // one line for a person
}

// patient is how long a node may be without a key, or its podCIDR without a router, before that is reported: each
// is, when it is new.
var patient = map[string]time.Duration{reasonNoKey: time.Minute, reasonNotAnnounced: time.Minute}

// A lastReport is what was reported of a problem that lasts.
type lastReport struct {
	due  time.Time // not before; zero: at once
	done bool
}

// maxEvents is how many problems of one Sync become events: a cluster whose nodes are all
// wrong is told so by each agent, and the API server has to bear it.
const maxEvents = 20

// newRoutes counts the routes to other nodes' podCIDRs by how they lead there.
func newRoutes(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_routes", "way", "Routes to other nodes' podCIDRs, by their way")
}

// newEgress counts pods with egress addresses by where their packets go.
func newEgress(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_egress_pods", "to", "Pods' addresses that leave by an egress address, by this node, another node, or nobody")
}

// countEgress sets the metric.
func (n *Network) countEgress(e *egressPlan) {
	if e == nil {
		return
	}
	for to, count := range map[string]int{"here": len(e.here), "node": len(e.via), "nobody": len(e.unroutable)} {
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
func (n *Network) countRoutes(p *plan) {
	counts := map[Way]int{}
	for _, r := range p.routes {
		counts[r.by]++
	}
	for label, way := range map[string]Way{"direct": WayRoutes, "vxlan": WayVXLAN, "wireguard": WayWireGuard, "bgp": WayBGP} {
		n.routes.WithLabelValues(label).Set(float64(counts[way]))
	}
}

func newProblems(registry prometheus.Registerer) *prometheus.GaugeVec {
	return newGauge(registry, "pod_network_problems", "reason", "Problems of the pod network, such as podCIDRs that are refused")
}

// report logs every problem once, and again when it was away in between, sends events about
// those of nodes, and counts all.
func (n *Network) report(problems []problem) {
	counts := map[string]int{reasonPodCIDR: 0, reasonUnreachable: 0, reasonRoute: 0, reasonNoKey: 0, reasonGateway: 0, reasonNotAnnounced: 0}
	now := make(map[problem]lastReport, len(problems))
	events := 0
	for _, p := range problems {
		counts[p.reason]++
		seen, lasts := n.reported[p]
		if !lasts {
			seen.due = n.now().Add(patient[p.reason])
		}
		say := !seen.done && !n.now().Before(seen.due)
		seen.done = seen.done || say
		now[p] = seen
		if !say {
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
