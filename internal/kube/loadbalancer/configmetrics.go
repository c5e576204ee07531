package loadbalancer

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// configMetrics exports the content of a ConfigurationState, with the metric names that MetalLB's alerts use. The zero
// value: no objects have been read. MetalLB keeps its last valid configuration as a whole, Fairway keeps each valid
// object.
type configMetrics struct {
	mu    sync.Mutex
	state configState
}

var (
	configLoaded = prometheus.NewDesc("metallb_k8s_client_config_loaded_bool", "1 if the objects of metallb.io have been read, else 0", nil, nil)
	configStale  = prometheus.NewDesc("metallb_k8s_client_config_stale_bool", "1 if something in the objects of metallb.io is wrong and left out, as the ConfigurationState says, else 0", nil, nil)
)

func (m *configMetrics) set(now configState) {
	m.mu.Lock()
	m.state = now
	m.mu.Unlock()
}

// Describe is a part of prometheus.Collector.
func (m *configMetrics) Describe(c chan<- *prometheus.Desc) { c <- configLoaded; c <- configStale }

// Collect is a part of prometheus.Collector.
func (m *configMetrics) Collect(c chan<- prometheus.Metric) {
	m.mu.Lock()
	now := m.state
	m.mu.Unlock()
	gauge := func(desc *prometheus.Desc, is bool) {
		value := 0.0
		if is {
			value = 1
		}
		c <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(configLoaded, now.Result != "")
	gauge(configStale, now.Result == resultInvalid)
}
