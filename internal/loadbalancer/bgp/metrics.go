package bgp

import (
	"sync/atomic"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/bfd"
)

// Metrics are a Speaker's metrics with MetalLB's names. The label peer is ADDRESS:PORT as in MetalLB, and ADDRESS:PORT/VRF
// for a router in a VRF.
type Metrics struct{ speaker atomic.Pointer[Speaker] }

// NewMetrics registers the metrics of a Speaker that New makes later.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := new(Metrics)
	r.MustRegister(m)
	return m
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("metallb_bgp_"+name, help, []string{"peer"}, nil)
}

func bfdDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("metallb_bfd_"+name, help, []string{"peer"}, nil)
}

var (
	sessionUp = desc("session_up", "1 if the session with a router is up, else 0")
	announced = desc("announced_prefixes_total", "Prefixes that a router is told")
	pending   = desc("pending_prefixes_total", "Prefixes that a router must be told")

	messages = [...]struct {
		desc  *prometheus.Desc
		count func(sent, received *gobgp.Message) uint64
	}{
		{desc("updates_total", "UPDATE messages sent to a router"), func(s, _ *gobgp.Message) uint64 { return s.GetUpdate() }},
		{desc("updates_total_received", "UPDATE messages received from a router"), func(_, r *gobgp.Message) uint64 { return r.GetUpdate() }},
		{desc("opens_sent", "OPEN messages sent to a router"), func(s, _ *gobgp.Message) uint64 { return s.GetOpen() }},
		{desc("opens_received", "OPEN messages received from a router"), func(_, r *gobgp.Message) uint64 { return r.GetOpen() }},
		{desc("keepalives_sent", "KEEPALIVE messages sent to a router"), func(s, _ *gobgp.Message) uint64 { return s.GetKeepalive() }},
		{desc("keepalives_received", "KEEPALIVE messages received from a router"), func(_, r *gobgp.Message) uint64 { return r.GetKeepalive() }},
		{desc("notifications_sent", "NOTIFICATION messages sent to a router"), func(s, _ *gobgp.Message) uint64 { return s.GetNotification() }},
		{desc("total_sent", "Messages sent to a router"), func(s, _ *gobgp.Message) uint64 { return s.GetTotal() }},
		{desc("total_received", "Messages received from a router"), func(_, r *gobgp.Message) uint64 { return r.GetTotal() }},
	}
)

// bfdMetrics are the metrics of a watched router. Their label peer is its address.
var bfdMetrics = [...]struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(bfd.Status) uint64
}{
	{bfdDesc("session_up", "1 if the BFD session with a router is up, else 0"), prometheus.GaugeValue, func(s bfd.Status) uint64 {
		if s.State == bfd.Up {
			return 1
		}
		return 0
	}},
	{bfdDesc("control_packet_input", "BFD packets received from a router"), prometheus.CounterValue, func(s bfd.Status) uint64 { return s.Received }},
	{bfdDesc("control_packet_output", "BFD packets sent to a router"), prometheus.CounterValue, func(s bfd.Status) uint64 { return s.Sent }},
	{bfdDesc("session_up_events", "Times that the BFD session with a router came up"), prometheus.CounterValue, func(s bfd.Status) uint64 { return s.Ups }},
	{bfdDesc("session_down_events", "Times that the BFD session with a router went down"), prometheus.CounterValue, func(s bfd.Status) uint64 { return s.Downs }},
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	c <- sessionUp
	c <- announced
	c <- pending
	for _, x := range messages {
		c <- x.desc
	}
	for _, x := range bfdMetrics {
		c <- x.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	s := m.speaker.Load()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	watchedOnce := map[bfd.Config]bool{} // sessions with one router share its BFD session
	for _, have := range s.sessions {
		config := have.config
		config.BFD = have.bfd
		if w, ok := watched(config); ok && !watchedOnce[w] {
			watchedOnce[w] = true
			now, _ := s.liveness.watch.Status(w)
			for _, x := range bfdMetrics {
				c <- prometheus.MustNewConstMetric(x.desc, x.kind, float64(x.value(now)), w.Peer.String())
			}
		}
		peer := have.config.Address.String()
		if vrf := have.config.VRF; vrf != "" {
			peer += "/" + vrf // another VRF may have a router with the same address
		}
		gauge := func(d *prometheus.Desc, v int) {
			c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), peer)
		}
		up, told := 0, 0
		if isUp, _, _ := have.state(); isUp {
			up, told = 1, len(have.advertised)
		}
		gauge(sessionUp, up)
		gauge(announced, told)
		gauge(pending, len(have.advertised))
		sent, received, err := have.counters()
		if err != nil {
			continue
		}
		for _, x := range messages {
			c <- prometheus.MustNewConstMetric(x.desc, prometheus.CounterValue, float64(x.count(sent, received)), peer)
		}
	}
}
