package kube

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the requests and objects of each kind.
type metrics struct {
	failures *prometheus.CounterVec
	retained *prometheus.GaugeVec
	listed   *prometheus.Desc
	objects  *prometheus.Desc
}

func newMetrics() *metrics {
	label := []string{"kind"}
	return &metrics{
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "fairway", Name: "api_failures_total", Help: "List and watch requests that failed or were refused",
		}, label),
		retained: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "fairway", Name: "api_kept_objects", Help: "Objects kept although the last list lacks them, for --empty-after, because it lacks most",
		}, label),
		listed:  prometheus.NewDesc("fairway_api_listed", "1 if the first list of the kind is in, 0 if the agent waits for it or works without it", label, nil),
		objects: prometheus.NewDesc("fairway_api_objects", "Objects of the kind", label, nil),
	}
}

// failed returns the function that counts a failure.
func (m *metrics) failed(kind string) func() { return m.failures.WithLabelValues(kind).Inc }

// Describe implements prometheus.Collector.
func (s *Store) Describe(out chan<- *prometheus.Desc) {
	s.metrics.failures.Describe(out)
	s.metrics.retained.Describe(out)
	out <- s.metrics.listed
	out <- s.metrics.objects
}

// Collect implements prometheus.Collector. It returns for each kind whether it is listed, the number of objects, and
// the number of failed requests.
func (s *Store) Collect(out chan<- prometheus.Metric) {
	s.metrics.failures.Collect(out)
	s.metrics.retained.Collect(out)
	for _, in := range s.inputs() {
		is := 0.0
		if in.progress() == listed {
			is = 1
		}
		out <- prometheus.MustNewConstMetric(s.metrics.listed, prometheus.GaugeValue, is, in.kind)
		out <- prometheus.MustNewConstMetric(s.metrics.objects, prometheus.GaugeValue, float64(in.len()), in.kind)
	}
}
