package edge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/service"
)

// Metrics are the metrics of the nodes' health checks.
type Metrics struct {
	answers *prometheus.CounterVec
	targets *prometheus.Desc
	states  func() map[service.ProbeState]int
}

// probeStates are the values of the label result.
var probeStates = []service.ProbeState{service.Passing, service.Failing, service.Silent}

// NewMetrics returns metrics without targets.
func NewMetrics() *Metrics {
	m := &Metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_edge_health_checks_total", Help: "Health checks of nodes by their result"}, []string{"result"}),
		targets: prometheus.NewDesc("fairway_edge_health_check_targets", "Ports of nodes that are checked, by what counts of their results", []string{"result"}, nil),
	}
	for _, s := range probeStates {
		m.answers.WithLabelValues(s.String())
	}
	return m
}

// Observe counts one answer.
func (m *Metrics) Observe(s service.ProbeState) { m.answers.WithLabelValues(s.String()).Inc() }

// SetProber adds the targets of a Prober to the metrics.
func (m *Metrics) SetProber(p *Prober) { m.states = p.States }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	m.answers.Describe(c)
	c <- m.targets
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	m.answers.Collect(c)
	states := map[service.ProbeState]int{}
	if m.states != nil {
		states = m.states()
	}
	for _, s := range append(probeStates[:len(probeStates):len(probeStates)], service.Unprobed) {
		c <- prometheus.MustNewConstMetric(m.targets, prometheus.GaugeValue, float64(states[s]), s.String())
	}
}
