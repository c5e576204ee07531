package server

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/gateway"
)

// metrics are the server's metrics. Labels name objects of the API, and classes of codes, never what a client sends.
type metrics struct {
	requests        *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	sentBytes       *prometheus.CounterVec
	badRequests     *prometheus.CounterVec
	refused         *prometheus.CounterVec
	handshakeErrors prometheus.Counter
	retries         prometheus.Counter
	ejections       prometheus.Counter
	limited         prometheus.Counter
	mirrorsDropped  prometheus.Counter
	streams         prometheus.Counter
	listenErrors    prometheus.Gauge
	connections     prometheus.GaugeFunc
	ejected         prometheus.GaugeFunc
	all             []prometheus.Collector
	meterMu         sync.Mutex // guards the making and forgetting of meters
}

// routeLabels are the labels of a listener's route.
var routeLabels = []string{"gateway", "listener", "route"}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "fairway_gateway_" + name, Help: help})
	}
	m := &metrics{
		requests:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_gateway_requests_total", Help: "Requests by route and class of the status"}, append(routeLabels[:3:3], "code")),
		duration:        prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fairway_gateway_request_duration_seconds", Help: "Time from a request's head to the end of its answer", Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}}, routeLabels),
		sentBytes:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_gateway_sent_bytes_total", Help: "Bytes of answers' bodies by route"}, routeLabels),
		badRequests:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_gateway_bad_requests_total", Help: "Requests that were refused before they were routed, by the code of the answer"}, []string{"code"}),
		refused:         prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairway_gateway_refused_connections_total", Help: "Connections and UDP flows that were closed unserved, by what they lack"}, []string{"reason"}),
		handshakeErrors: counter("handshake_errors_total", "TLS handshakes that failed"),
		retries:         counter("retries_total", "Attempts after the first one of a request"),
		ejections:       counter("ejections_total", "Endpoints that lost their requests for a while because they did not answer"),
		limited:         counter("limited_requests_total", "Requests beyond a client's limits"),
		mirrorsDropped:  counter("dropped_mirrors_total", "Copies of requests that were not sent"),
		streams:         counter("streams_total", "Connections that were relayed without HTTP"),
		listenErrors:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairway_gateway_listen_errors", Help: "Ports at which the gateway cannot listen"}),
		connections: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairway_gateway_connections", Help: "Open connections of clients"},
			func() float64 { return float64(s.conns.count()) }),
		ejected: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairway_gateway_ejected_endpoints", Help: "Endpoints that get no requests now because they did not answer"},
			func() float64 { return float64(s.ejected()) }),
	}
	m.all = []prometheus.Collector{
		m.requests, m.duration, m.sentBytes, m.badRequests, m.refused, m.handshakeErrors, m.retries, m.ejections, m.limited,
		m.mirrorsDropped, m.streams, m.listenErrors, m.connections, m.ejected,
	}
	return m
}

// ejected counts the ejected endpoints.
func (s *Server) ejected() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.upstreams {
		n += int(u.ejected.Load())
	}
	return n
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(c chan<- *prometheus.Desc) {
	for _, m := range s.metrics.all {
		m.Describe(c)
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	for _, m := range s.metrics.all {
		m.Collect(c)
	}
}

// A meter has the metrics of a rule at one listener.
type meter struct {
	listener *gateway.Listener
	labels   []string
	codes    [6]prometheus.Counter // by class; 0: no answer
	duration prometheus.Observer
	sent     prometheus.Counter
}

// meterOf returns the meter of a rule at a listener. A rule has few listeners.
func (m *metrics) meterOf(r *ruleState, l *gateway.Listener) *meter {
	for _, k := range *r.meters.Load() {
		if k.listener == l {
			return k
		}
	}
	m.meterMu.Lock()
	defer m.meterMu.Unlock()
	k := &meter{listener: l, labels: labelsOf(r.rule, l)}
	for i := range k.codes {
		class := "none"
		if i > 0 {
			class = strconv.Itoa(i) + "xx"
		}
		k.codes[i] = m.requests.WithLabelValues(append(k.labels[:3:3], class)...)
	}
	k.duration, k.sent = m.duration.WithLabelValues(k.labels...), m.sentBytes.WithLabelValues(k.labels...)
	// A listener that was compiled again has the same labels. The newest few are kept.
	all := append([]*meter{k}, *r.meters.Load()...)
	all = all[:min(len(all), 8)]
	r.meters.Store(&all)
	return k
}

func labelsOf(rule *gateway.Rule, l *gateway.Listener) []string {
	labels := []string{"", "", string(rule.Route.Kind) + "/" + rule.Route.Name.String()}
	if l != nil {
		labels[1] = l.Name
		if l.Owner.Name.Name != "" {
			labels[0] = l.Owner.Name.String()
		}
	}
	return labels
}

// forget removes the metrics of rules that had no requests for a while, unless a rule that stays has the same labels: rules
// of one route share them, and so do a rule and its next version.
func (m *metrics) forget(gone, stay []*ruleState) {
	m.meterMu.Lock()
	defer m.meterMu.Unlock()
	used := map[[3]string]bool{}
	for _, r := range stay {
		for _, k := range *r.meters.Load() {
			used[[3]string(k.labels)] = true
		}
	}
	for _, r := range gone {
		for _, k := range *r.meters.Load() {
			if used[[3]string(k.labels)] {
				continue
			}
			match := prometheus.Labels{"gateway": k.labels[0], "listener": k.labels[1], "route": k.labels[2]}
			m.requests.DeletePartialMatch(match)
			m.duration.DeletePartialMatch(match)
			m.sentBytes.DeletePartialMatch(match)
		}
	}
}

// observe counts and logs a request.
func (s *Server) observe(x *exchange, code int, sent int64) {
	if x.rule == nil {
		if x.decision.Outcome != gateway.Serve {
			s.metrics.badRequests.WithLabelValues(strconv.Itoa(code)).Inc()
		}
		if s.LogRequests {
			s.logRequest(x, code, sent, time.Since(x.started))
		}
		return
	}
	took := time.Since(x.started)
	k := s.metrics.meterOf(x.rule, x.decision.Listener)
	class := code / 100
	if class > 5 {
		class = 0
	}
	k.codes[class].Inc()
	k.duration.Observe(took.Seconds())
	if sent > 0 {
		k.sent.Add(float64(sent))
	}
	log := s.LogRequests
	if set := x.decision.Rule.Filters.AccessLog; set != nil {
		log = *set
	}
	if log {
		s.logRequest(x, code, sent, took)
	}
}

// logRequest writes a line of the access log. A client's text is cut: the log must not cost more than the request.
func (s *Server) logRequest(x *exchange, code int, sent int64, took time.Duration) {
	if s.AccessLog == nil {
		return
	}
	cut := func(v string) string { return strings.Clone(v[:min(len(v), 1024)]) }
	agent, _ := x.in.Header("User-Agent")
	attrs := []any{
		"client", x.in.Client().String(), "method", cut(x.in.Method()), "host", x.in.Host(), "path", cut(x.in.Path()),
		"status", code, "bytes", sent, "seconds", took.Seconds(), "agent", cut(agent),
	}
	if l := x.decision.Listener; l != nil {
		attrs = append(attrs, "gateway", l.Owner.Name.String(), "listener", l.Name)
	}
	if rule := x.decision.Rule; rule != nil {
		attrs = append(attrs, "route", string(rule.Route.Kind)+"/"+rule.Route.Name.String(), "rule", rule.Index)
	}
	if x.backend != nil {
		attrs = append(attrs, "backend", x.backend.Service.String())
	}
	if x.endpoint != nil {
		attrs = append(attrs, "endpoint", x.endpoint.text, "attempts", len(x.tried))
	}
	if x.reason != "" {
		attrs = append(attrs, "reason", x.reason)
	}
	s.AccessLog.Info("request", attrs...)
}
