package dns

import (
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/acl"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

var keptAnswers = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "fairway_dns_kept_answers_total",
	Help: "Questions about names of the cluster answered from kept messages, without CoreDNS's plugins",
})

// counters are CoreDNS's metrics of one kind of answer, so that kept answers count as others do. A nil *counters counts
// nothing.
type counters struct {
	requests, responses, do, admitted     prometheus.Counter
	duration, requestBytes, responseBytes prometheus.Observer
}

// A countersKey is what the labels of metrics say about an answer.
type countersKey struct {
	zone  string
	qtype uint16
	rcode int
}

// families are the labels of IPv4 and IPv6.
var families = [2]string{"1", "2"}

// countersOf returns the counters of an answer to IPv4 and to IPv6 clients.
func (z *frontZone) countersOf(m *dns.Msg) (both [2]*counters) {
	if z.counts == nil && z.clients == nil {
		return both
	}
	key := countersKey{zone: ".", qtype: m.Question[0].Qtype, rcode: m.Rcode}
	if z.counts != nil {
		if zone := plugin.Zones(z.counts.ZoneNames()).Matches(m.Question[0].Name); zone != "" {
			key.zone = zone
		}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if found, ok := z.made[key]; ok {
		return found
	}
	for i, family := range families {
		both[i] = z.newCounters(key, family)
	}
	z.made[key] = both
	return both
}

func (z *frontZone) newCounters(k countersKey, family string) *counters {
	c := &counters{}
	if z.clients != nil {
		c.admitted = acl.RequestAllowCount.WithLabelValues(z.server, "")
	}
	if z.counts == nil {
		return c
	}
	first := "" // CoreDNS counts answers for the plugin that follows prometheus
	if z.counts.Next != nil {
		first = z.counts.Next.Name()
	}
	c.requests = vars.RequestCount.WithLabelValues(z.server, k.zone, "", "udp", family, dns.TypeToString[k.qtype])
	c.responses = vars.ResponseRcode.WithLabelValues(z.server, k.zone, "", rcode.ToString(k.rcode), first)
	c.do = vars.RequestDo.WithLabelValues(z.server, k.zone, "")
	c.duration = vars.RequestDuration.WithLabelValues(z.server, k.zone, "")
	c.requestBytes = vars.RequestSize.WithLabelValues(z.server, k.zone, "", "udp")
	c.responseBytes = vars.ResponseSize.WithLabelValues(z.server, k.zone, "", "udp")
	return c
}

// count counts one answer. response is its size without the OPT record.
func (c *counters) count(request, response int, do bool, d time.Duration) {
	if c == nil {
		return
	}
	if c.admitted != nil {
		c.admitted.Inc()
	}
	if c.requests == nil {
		return
	}
	if do {
		c.do.Inc()
	}
	c.requests.Inc()
	c.responses.Inc()
	c.duration.Observe(d.Seconds())
	c.requestBytes.Observe(float64(request))
	c.responseBytes.Observe(float64(response))
}
