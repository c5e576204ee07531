package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Metrics are kube-proxy's, under the same names, so that dashboards and alerts continue to work. One pass writes both
// families, so it counts for each family. The counters of Services are added (carried.go).
type Metrics struct {
	duration, full, partial, programming *prometheus.HistogramVec
	timestamp, queued                    *prometheus.GaugeVec
	failures                             map[bool]*prometheus.CounterVec // of full passes (true) and partial passes
	failed                               prometheus.Counter
	retained, differ, ejected            prometheus.Gauge
	ejections                            prometheus.Counter
	elements                             *prometheus.CounterVec
	forgetting                           *prometheus.HistogramVec
	forgotten                            *prometheus.CounterVec
	noLocal                              *prometheus.GaugeVec
	missing                              map[api.Name][]missing // the Services that noLocal counts
	carried                              *carried
}

// families are the values of the label ip_family.
var families = []string{"IPv4", "IPv6"}

// MetricsConfig configures Metrics.
type MetricsConfig struct {
	Registry prometheus.Registerer
	// Mode is the datapath's name, which is a part of some of kube-proxy's metric names.
	Mode string
	// Changes returns the number of changes of objects; nil: they are not counted.
	Changes func() service.Changes
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(cfg MetricsConfig) *Metrics {
	r := factory{cfg.Registry}
	label := []string{"ip_family"}
	// kube-proxy's first bucket is one millisecond. Most of our passes take less, so our buckets start lower. Dashboards
	// sum buckets by le, so more buckets do no harm.
	m := &Metrics{
		duration:    r.histogram("sync_proxy_rules_duration_seconds", "Duration of a sync that succeeded, in seconds", 0.000125, 18),
		full:        r.histogram("sync_full_proxy_rules_duration_seconds", "Duration of a sync that read the kernel's rules back, in seconds", 0.000125, 18),
		partial:     r.histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a sync that wrote only changes, in seconds", 0.000125, 18),
		programming: r.histogram("network_programming_duration_seconds", "Time from the change of an endpoint in the cluster until it is in the kernel, in seconds", 0.001, 18),
		timestamp:   r.gauge("sync_proxy_rules_last_timestamp_seconds", "Time of the last sync that succeeded, in seconds since 1970", label...),
		queued:      r.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "Time when the last sync began, in seconds since 1970", label...),
		forgetting:  r.histogram("conntrack_reconciler_sync_duration_seconds", "Duration of a search for stale conntrack entries, in seconds", 0.001, 15),
		forgotten:   r.counter("kubeproxy", "conntrack_reconciler_deleted_entries_total", "Conntrack entries deleted because their endpoint or address is gone", label...),
		noLocal:     r.gauge("sync_proxy_rules_no_local_endpoints_total", "Services with a Local traffic policy that have endpoints, but none on this node", "ip_family", "traffic_policy"),
		elements:    r.counter("fairway", "datapath_elements_total", "Elements of sets and maps, rules and virtual servers written to the kernel", "operation"),
		failed:      r.counter("fairway", "datapath_failures_total", "Syncs that failed").WithLabelValues(),
		retained:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "kept_frontends", Help: "Frontends that an agent keeps after its start although the API server has none of most of them"}),
		ejected:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "ejected_endpoints", Help: "Endpoints that get no new connections now because they fail connections of this node"}),
		ejections:   r.counter("fairway", "ejections_total", "Endpoints that lost new connections for a while because they failed connections of this node").WithLabelValues(),
		differ:      prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "rules_differ", Help: "1 if the kernel holds other rules than were written, also when they were written again"}),
		missing:     map[api.Name][]missing{},
		carried:     newCarried(),
	}
	m.failures = r.failures(cfg.Mode)
	for _, f := range families {
		for _, policy := range []string{"internal", "external"} {
			m.noLocal.WithLabelValues(f, policy)
		}
		for _, full := range []bool{false, true} {
			if v := m.failures[full]; v != nil {
				v.WithLabelValues(f)
			}
		}
		if cfg.Changes != nil {
			r.changes(cfg.Changes, f)
		}
	}
	cfg.Registry.MustRegister(m.carried, m.retained, m.differ, m.ejected)
	return m
}

// A factory makes metrics and registers them.
type factory struct{ prometheus.Registerer }

func (r factory) histogram(name, help string, first float64, count int) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "kubeproxy", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, count),
	}, []string{"ip_family"})
	r.MustRegister(h)
	return h
}

func (r factory) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}, labels)
	r.MustRegister(g)
	return g
}

func (r factory) counter(namespace, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

// failures makes the mode's own counters of failed passes.
func (r factory) failures(mode string) map[bool]*prometheus.CounterVec {
	const name = "sync_proxy_rules_"
	label := "ip_family"
	switch mode {
	case datapath.IPTables:
		return map[bool]*prometheus.CounterVec{
			true:  r.counter("kubeproxy", name+"iptables_restore_failures_total", "Syncs that failed", label),
			false: r.counter("kubeproxy", name+"iptables_partial_restore_failures_total", "Syncs that wrote only changes and failed", label),
		}
	case datapath.NFTables:
		v := r.counter("kubeproxy", name+"nftables_sync_failures_total", "Syncs that failed", label)
		return map[bool]*prometheus.CounterVec{true: v, false: v}
	}
	return nil
}

// changes makes kube-proxy's counters of changes from the API server. kube-proxy's changes are of one family, ours are
// of both.
func (r factory) changes(count func() service.Changes, family string) {
	labels := prometheus.Labels{"ip_family": family}
	for _, m := range []struct {
		name, objects string
		all, pending  func(service.Changes) uint64
	}{
		{"service_changes", "Services", func(c service.Changes) uint64 { return c.Services }, func(c service.Changes) uint64 { return c.ServicesPending }},
		{"endpoint_changes", "EndpointSlices", func(c service.Changes) uint64 { return c.Endpoints }, func(c service.Changes) uint64 { return c.EndpointsPending }},
	} {
		opts := prometheus.Opts{Namespace: "kubeproxy", ConstLabels: labels}
		opts.Name, opts.Help = "sync_proxy_rules_"+m.name+"_total", "Changes of "+m.objects+" received from the API server"
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts(opts), func() float64 { return float64(m.all(count())) }))
		opts.Name, opts.Help = "sync_proxy_rules_"+m.name+"_pending", "Changes of "+m.objects+" that wait for the next sync"
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts), func() float64 { return float64(m.pending(count())) }))
	}
}

// pass counts one pass.
func (m *Metrics) pass(start time.Time, s datapath.Stats, err error) {
	took := time.Since(start).Seconds()
	m.elements.WithLabelValues("add").Add(float64(s.Added))
	m.elements.WithLabelValues("delete").Add(float64(s.Deleted))
	if err != nil {
		m.failed.Inc()
	}
	for _, f := range families {
		m.queued.WithLabelValues(f).Set(float64(start.UnixMicro()) / 1e6)
		if err != nil {
			if v := m.failures[s.Full]; v != nil {
				v.WithLabelValues(f).Inc()
			}
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

// FlowsEnded counts one search for flows, which is for both families.
func (m *Metrics) FlowsEnded(took time.Duration, ended int) {
	m.forgetting.WithLabelValues(families[0]).Observe(took.Seconds())
	m.forgotten.WithLabelValues(families[0]).Add(float64(ended))
}

// programmed records the delay of changes that the kernel now has.
func (m *Metrics) programmed(since []time.Time) {
	for _, f := range families {
		for _, t := range since {
			m.programming.WithLabelValues(f).Observe(time.Since(t).Seconds())
		}
	}
}

// missing is a family and a policy in which a Service has endpoints, but none on this node.
type missing struct{ family, policy string }

// compiled updates noLocal for a Service; e is nil if the Service was deleted.
func (m *Metrics) compiled(n api.Name, e *service.Entry) {
	var now []missing
	if e != nil {
		now = noLocal(e)
	}
	for _, v := range m.missing[n] {
		m.noLocal.WithLabelValues(v.family, v.policy).Dec()
	}
	for _, v := range now {
		m.noLocal.WithLabelValues(v.family, v.policy).Inc()
	}
	if len(now) == 0 {
		delete(m.missing, n)
	} else {
		m.missing[n] = now
	}
}

// noLocal returns the families and policies that drop packets because no endpoint is on this node, each once. Only
// traffic policies drop packets of a Service with endpoints.
func noLocal(e *service.Entry) []missing {
	var all []missing
	add := func(is4 bool, policy string) {
		v := missing{families[1], policy}
		if is4 {
			v.family = families[0]
		}
		for _, o := range all {
			if o == v {
				return
			}
		}
		all = append(all, v)
	}
	for _, f := range e.Frontends {
		is4 := f.Addr.Addr().Is4()
		switch {
		case f.ClusterIP && f.Internal.Action == service.Drop:
			add(is4, "internal")
		case !f.ClusterIP && f.External.Action == service.Drop:
			add(is4, "external")
		}
	}
	return all
}
