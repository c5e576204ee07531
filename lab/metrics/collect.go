package metrics

import (
	"fmt"
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A what identifies a container. Its zero value is the node itself.
type what struct{ namespace, pod, container string }

// A sample is the state of the counters at one time.
type sample struct {
	cpu    float64 // seconds, since the start of the container or node
	memory float64 // bytes
	at     time.Time
}

// A reading contains all samples of one node.
type reading map[what]sample

// read parses a kubelet's answer at /metrics/resource.
func read(in io.Reader) (reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(in)
	if err != nil {
		return nil, fmt.Errorf("read metrics of a kubelet: %w", err)
	}
	r := reading{}
	each := func(name string, set func(*sample, *dto.Metric)) {
		for _, m := range families[name].GetMetric() {
			w := whatOf(m)
			s := r[w]
			set(&s, m)
			r[w] = s
		}
	}
	cpu := func(s *sample, m *dto.Metric) {
		s.cpu, s.at = m.GetCounter().GetValue(), time.UnixMilli(m.GetTimestampMs())
	}
	memory := func(s *sample, m *dto.Metric) { s.memory = m.GetGauge().GetValue() }
	each("node_cpu_usage_seconds_total", cpu)
	each("node_memory_working_set_bytes", memory)
	each("container_cpu_usage_seconds_total", cpu)
	each("container_memory_working_set_bytes", memory)
	for w, s := range r {
		if s.at.IsZero() { // the CPU time is missing
			delete(r, w)
		}
	}
	return r, nil
}

func whatOf(m *dto.Metric) (w what) {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			w.namespace = l.GetValue()
		case "pod":
			w.pod = l.GetValue()
		case "container":
			w.container = l.GetValue()
		}
	}
	return w
}

// A Usage is the average CPU use in Window, which ends at At, and the memory use at At.
type Usage struct {
	At     time.Time
	Window time.Duration
	CPU    float64 // cores
	Memory float64 // bytes
}

// resources returns the usage in the API's format.
func (u Usage) resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.CPU*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.Memory), resource.BinarySI),
	}
}

// A history holds the last reading of a node. former holds, for each container, the previous sample with an earlier
// time.
type history struct{ former, last reading }

// add adds a reading. A sample with an unchanged time does not replace the previous sample.
func (h *history) add(r reading) {
	former := reading{}
	for w, s := range r {
		last, ok := h.last[w]
		switch {
		case ok && last.at.Before(s.at):
			former[w] = last
		case ok && last.at.Equal(s.at):
			if before, ok := h.former[w]; ok {
				former[w] = before
			}
		}
	}
	h.former, h.last = former, r
}

// usage returns the usage between the last two samples. It returns false if there is only one sample, or if the counter
// has restarted.
func (h *history) usage(w what) (Usage, bool) {
	last, ok := h.last[w]
	former, had := h.former[w]
	if !ok || !had || last.cpu < former.cpu {
		return Usage{}, false
	}
	window := last.at.Sub(former.at)
	return Usage{At: last.at, Window: window, CPU: (last.cpu - former.cpu) / window.Seconds(), Memory: last.memory}, true
}
