package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/datapath"
)

// Metrics are kube-proxy's, by its names, so that dashboards and alerts go on working.
// One pass programs both families, so each is observed.
type Metrics struct {
	duration, full, partial, programming *prometheus.HistogramVec
	timestamp, queued                    *prometheus.GaugeVec
	changes, failures                    *prometheus.CounterVec
	elements                             *prometheus.CounterVec
	forgetting                           *prometheus.HistogramVec
	forgotten                            *prometheus.CounterVec
}

// families are the values of the label ip_family.
var families = []string{"IPv4", "IPv6"}

// NewMetrics makes the metrics and registers them with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	label := []string{"ip_family"}
	histogram := func(name, help string, first float64, count int) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "kubeproxy", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, count),
		}, label)
		r.MustRegister(h)
		return h
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}, label)
		r.MustRegister(g)
		return g
	}
	counter := func(namespace, name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	// The first bucket is kube-proxy's, a millisecond; below that lie most of our
	// passes, so ours start lower: a dashboard sums buckets by le and does not mind.
	return &Metrics{
		duration:    histogram("sync_proxy_rules_duration_seconds", "Duration of a pass in seconds", 0.000125, 18),
		full:        histogram("sync_full_proxy_rules_duration_seconds", "Duration of a pass that read the kernel's rules back, in seconds", 0.000125, 18),
		partial:     histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a pass that wrote only changes, in seconds", 0.000125, 18),
		programming: histogram("network_programming_duration_seconds", "Time from the change of an endpoint in the cluster to the kernel, in seconds", 0.001, 18),
		timestamp:   gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were last written, in seconds since 1970"),
		queued:      gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a pass was last asked for, in seconds since 1970"),
		changes:     counter("kubeproxy", "sync_proxy_rules_service_changes_total", "Services that were compiled again", label...),
		failures:    counter("kubeproxy", "sync_proxy_rules_nftables_sync_failures_total", "Passes that failed", label...),
		forgetting:  histogram("conntrack_reconciler_sync_duration_seconds", "Time to delete the flows that a pass made wrong, in seconds", 0.001, 15),
		forgotten:   counter("kubeproxy", "conntrack_reconciler_deleted_entries_total", "Flows deleted because a change made them wrong", label...),
		elements:    counter("fairway", "datapath_elements_total", "Elements written to the kernel", "operation"),
	}
}

// pass takes note of one pass.
func (m *Metrics) pass(start time.Time, s datapath.Stats, err error) {
	took := time.Since(start).Seconds()
	m.elements.WithLabelValues("add").Add(float64(s.Added))
	m.elements.WithLabelValues("delete").Add(float64(s.Deleted))
	for _, f := range families {
		m.queued.WithLabelValues(f).Set(float64(start.UnixMicro()) / 1e6)
		if err != nil {
			m.failures.WithLabelValues(f).Inc()
			continue
		}
		m.timestamp.WithLabelValues(f).SetToCurrentTime()
		m.duration.WithLabelValues(f).Observe(took)
		kind := m.partial
		if s.Full {
			kind = m.full
		}
		kind.WithLabelValues(f).Observe(took)
	}
}

// forgot takes note of deleted flows. Both families are done in one go.
func (m *Metrics) forgot(start time.Time, deleted int) {
	m.forgetting.WithLabelValues(families[0]).Observe(time.Since(start).Seconds())
	m.forgotten.WithLabelValues(families[0]).Add(float64(deleted))
}

// changed takes note of Services that were compiled.
func (m *Metrics) changed(n int) {
	for _, f := range families {
		m.changes.WithLabelValues(f).Add(float64(n))
	}
}

// programmed takes note of changes that are in the kernel now.
func (m *Metrics) programmed(since []time.Time) {
	for _, f := range families {
		for _, t := range since {
			m.programming.WithLabelValues(f).Observe(time.Since(t).Seconds())
		}
	}
}
