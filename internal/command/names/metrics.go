package names

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/dns/names/plan"
)

// Metrics are the metrics of `fairway names sync`.
type Metrics struct {
	records  *prometheus.GaugeVec
	changes  prometheus.Counter
	errors   prometheus.Counter
	lastSync prometheus.Gauge
}

// NewMetrics returns Metrics without a registry.
func NewMetrics() *Metrics {
	return &Metrics{
		records:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairway_names_records", Help: "Records by state, where owned are ours, skipped are wanted and not written, held are unwanted and kept"}, []string{"state"}),
		changes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "fairway_names_changes_total", Help: "Changes of records that were written to the DNS server"}),
		errors:   prometheus.NewCounter(prometheus.CounterOpts{Name: "fairway_names_errors_total", Help: "Passes that failed because the DNS server did not answer or refused"}),
		lastSync: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairway_names_last_sync_timestamp_seconds", Help: "Time of the last pass without an error, in seconds since 1970"}),
	}
}

// set sets the numbers of records.
func (m *Metrics) set(p plan.Plan) {
	for state, n := range map[string]int{"owned": p.Owned, "foreign": p.Foreign, "skipped": len(p.Skipped), "held": len(p.Held)} {
		m.records.WithLabelValues(state).Set(float64(n))
	}
}

// done notes a pass without an error.
func (m *Metrics) done() { m.lastSync.SetToCurrentTime() }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.records, m.changes, m.errors, m.lastSync} {
		c.Collect(out)
	}
}
