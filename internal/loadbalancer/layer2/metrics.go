package layer2

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

// Metrics are a speaker's metrics. A metric that MetalLB's speaker has too has MetalLB's name.
type Metrics struct {
	assigned                                 *prometheus.GaugeVec
	frames                                   [3]*prometheus.CounterVec // by arp.Frame
	addrs                                    map[string]bool           // that have counters in frames
	node                                     string
	messages, bytes, refused, grants         prometheus.Counter
	takeovers, losses, conflicts, fenceLoads prometheus.Counter
}

// NewMetrics registers the metrics of a node's speaker.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "fairway", Subsystem: "speaker", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	m := &Metrics{
		node: node,
		assigned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "metallb", Subsystem: "speaker", Name: "announced",
			Help: "1 for each address of a Service that this node announces",
		}, []string{"service", "protocol", "node", "ip"}),
		messages:   counter("messages_sent_total", "Messages of the election sent to other speakers"),
		bytes:      counter("bytes_sent_total", "Bytes of the election's messages, without headers of UDP and IP"),
		refused:    counter("messages_refused_total", "Messages that were malformed or not authentic"),
		grants:     counter("grants_total", "Requests for the node's addresses that a majority granted"),
		takeovers:  counter("takeovers_total", "Addresses that this node has taken over, or had first"),
		losses:     counter("losses_total", "Addresses that this node has lost without giving them up"),
		conflicts:  counter("conflicts_total", "Times that another machine said it had an address of this node's"),
		fenceLoads: counter("fence_reloads_total", "Times that the fence's rules had to be loaded again"),
	}
	r.MustRegister(m.assigned)
	for f, text := range [...][2]string{
		arp.Request:    {"requests_received", "Number of layer2 requests received for owned IPs"},
		arp.Response:   {"responses_sent", "Number of layer2 responses sent for owned IPs in response to requests"},
		arp.Gratuitous: {"gratuitous_sent", "Number of gratuitous layer2 packets sent for owned IPs as a result of failovers"},
	} {
		m.frames[f] = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "metallb", Subsystem: "layer2", Name: text[0], Help: text[1]}, []string{"ip"})
		r.MustRegister(m.frames[f])
	}
	return m
}

// frame counts a frame about an address.
func (m *Metrics) frame(f arp.Frame, a netip.Addr) { m.frames[f].WithLabelValues(a.String()).Inc() }

// MetalLB's values of the label protocol.
const (
	protocolL2  = "layer2"
	protocolBGP = "bgp"
)

// announced replaces the rows of a protocol by rows for these addresses.
func (m *Metrics) announced(protocol string, addrs map[api.Name][]netip.Addr) {
	m.assigned.DeletePartialMatch(prometheus.Labels{"protocol": protocol})
	for name, all := range addrs {
		for _, a := range all {
			m.assigned.WithLabelValues(name.String(), protocol, m.node, a.String()).Set(1)
		}
	}
}

// SetBGP sets the addresses of each Service that the node announces to routers. It may be called by any goroutine.
func (m *Metrics) SetBGP(addrs map[api.Name][]netip.Addr) { m.announced(protocolBGP, addrs) }

// set sets the Services that the node announces on its own networks.
func (m *Metrics) set(assigned map[api.Name]Assignment) {
	current, addrs := map[string]bool{}, make(map[api.Name][]netip.Addr, len(assigned))
	for name, x := range assigned {
		addrs[name] = x.Addrs
		for _, a := range x.Addrs {
			current[a.String()] = true
		}
	}
	m.announced(protocolL2, addrs)
	for a := range m.addrs { // as in MetalLB, an address loses its counters when its announcement ends
		if !current[a] {
			for _, f := range m.frames {
				f.DeleteLabelValues(a)
			}
		}
	}
	m.addrs = current
}
