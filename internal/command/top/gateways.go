package top

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/kube"
)

// maxMetrics bounds the metrics of one gateway pod.
const maxMetrics = 8 << 20

// connectGateways finds the gateway's pods.
func (q *flags) connectGateways(ctx context.Context) (*session, error) {
	agents, err := kube.ConnectAgents(q.connection, q.agents)
	if err != nil {
		return nil, err
	}
	listing, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	pods, err := agents.Gateways(listing)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no gateway pod is in namespace %s [fairway install --gateway]", q.agents)
	}
	s := &session{}
	if more := len(pods) - maxNodes; more > 0 {
		pods = pods[:maxNodes]
		s.notes = []string{fmt.Sprintf("%d more gateway pods are not asked", more)}
	}
	byName := map[string]kube.AgentPod{}
	for _, p := range pods {
		s.ask = append(s.ask, p.Name)
		byName[p.Name] = p
	}
	s.routes = top.NewRoutes(q.interval, s.ask)
	s.asker = newAsker(nil, q.interval)
	s.asker.talk = func(ctx context.Context, pod string) error {
		return s.asker.poll(ctx, pod, func(ctx context.Context) ([]byte, error) { return agents.Metrics(ctx, byName[pod], maxMetrics) })
	}
	return s, nil
}

// poll reads a pod's metrics at each interval.
func (a *asker) poll(ctx context.Context, pod string, read func(context.Context) ([]byte, error)) error {
	ticks := time.NewTicker(a.interval)
	defer ticks.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, answerLimit)
		data, err := read(one)
		cancel()
		if err != nil {
			return err
		}
		s, err := parseRoutes(data, time.Now())
		if err != nil {
			return err
		}
		a.tell(ctx, answer{node: pod, at: s.At, routes: s})
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// parseRoutes reads the figures of routes from a gateway pod's metrics.
func parseRoutes(data []byte, at time.Time) (*top.RouteSample, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	all, err := p.TextToMetricFamilies(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the pod's metrics: %w", err)
	}
	s := &top.RouteSample{At: at, Routes: map[top.RouteName]top.RouteFigures{}}
	if m := all["process_start_time_seconds"].GetMetric(); len(m) == 1 {
		s.Run = int64(m[0].GetGauge().GetValue() * 1000)
	}
	add := func(family string, change func(*top.RouteFigures, *dto.Metric, string)) {
		for _, m := range all[family].GetMetric() {
			name, code := labelsOf(m)
			f := s.Routes[name]
			change(&f, m, code)
			s.Routes[name] = f
		}
	}
	add("fairway_gateway_requests_total", func(f *top.RouteFigures, m *dto.Metric, code string) {
		n := uint64(max(0, m.GetCounter().GetValue()))
		f.Requests += n
		switch code {
		case "4xx":
			f.ClientErrors += n
		case "5xx":
			f.ServerErrors += n
		}
	})
	add("fairway_gateway_sent_bytes_total", func(f *top.RouteFigures, m *dto.Metric, _ string) {
		f.Bytes += uint64(max(0, m.GetCounter().GetValue()))
	})
	add("fairway_gateway_request_duration_seconds", func(f *top.RouteFigures, m *dto.Metric, _ string) {
		f.Seconds += m.GetHistogram().GetSampleSum()
		f.Timed += m.GetHistogram().GetSampleCount()
	})
	return s, nil
}

// labelsOf returns the route of a series, and its class of status codes. A route's listeners are added up.
func labelsOf(m *dto.Metric) (name top.RouteName, code string) {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "gateway":
			name.Gateway = l.GetValue()
		case "route":
			name.Kind, name.Name, _ = strings.Cut(l.GetValue(), "/")
		case "code":
			code = l.GetValue()
		}
	}
	return name, code
}
