package enforcer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// Metrics are the metrics of an Enforcer. A nil Metrics counts nothing.
type Metrics struct {
	policies, classes, grants, limited prometheus.Gauge
	kept                               prometheus.Gauge
	isolated                           *prometheus.GaugeVec
	denied                             *prometheus.CounterVec
	last                               nftables.Counts // the kernel's counts at the last look
	duration                           prometheus.Histogram
	written, failed, ended             prometheus.Counter
}

// NewMetrics registers the metrics of NetworkPolicies.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Subsystem: "policy", Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	gauges := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fairway", Subsystem: "policy", Name: name, Help: help}, []string{"direction"})
		r.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "fairway", Subsystem: "policy", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	m := &Metrics{
		policies: gauge("policies", "NetworkPolicies that isolate pods of this node"),
		classes:  gauge("classes", "Classes of addresses that the NetworkPolicies of this node tell apart"),
		grants:   gauge("grants", "Elements of the kernel that say what the pods of this node are allowed"),
		limited:  gauge("limited", "NetworkPolicies that allow nothing because their namespace exceeds a limit"),
		kept:     gauge("kept_addresses", "Addresses of pods whose rules an agent keeps after its start although the API server has none of most of them"),
		isolated: gauges("isolated_addresses", "Addresses of this node's pods that are isolated"),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairway", Subsystem: "policy", Name: "denied_packets_total", Help: "Packets that were denied, read every 10 seconds",
		}, []string{"direction"}),
		written: counter("written_elements_total", "Elements that were written to the kernel"),
		failed:  counter("sync_failures_total", "Passes that could not write to the kernel"),
		ended:   counter("ended_connections_total", "Connections that were ended because they lost their grant"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "fairway", Subsystem: "policy", Name: "sync_duration_seconds",
			Help: "How long a pass that wrote something took, compiling included", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
	}
	r.MustRegister(m.duration, m.denied)
	return m
}

// observePass notes a pass over a table.
func (m *Metrics) observePass(c *networkpolicy.Compiler, t *networkpolicy.Table, written int, took time.Duration, err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.failed.Inc()
		return
	}
	s := c.Stats()
	m.policies.Set(float64(s.Policies))
	m.classes.Set(float64(s.Classes))
	m.grants.Set(float64(s.Grants))
	m.limited.Set(float64(len(c.Problems())))
	for d, all := range t.Isolated {
		m.isolated.WithLabelValues(networkpolicy.Direction(d).String()).Set(float64(len(all)))
	}
	if written > 0 {
		m.written.Add(float64(written))
		m.duration.Observe(took.Seconds())
	}
}

// counted adds the kernel's counts since the last call.
func (m *Metrics) counted(all nftables.Counts) {
	if m == nil {
		return
	}
	for d, n := range all {
		since := n - m.last[d]
		if n < m.last[d] { // the rules were loaded again
			since = n
		}
		m.denied.WithLabelValues(networkpolicy.Direction(d).String()).Add(float64(since))
	}
	m.last = all
}

// setKept notes how many addresses keep the rules that the kernel had at the start.
func (m *Metrics) setKept(n int) {
	if m != nil {
		m.kept.Set(float64(n))
	}
}

func (m *Metrics) addEnded(n int) {
	if m != nil {
		m.ended.Add(float64(n))
	}
}
