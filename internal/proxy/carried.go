package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
)

// scrapePatience is the time that a scrape waits for the loop. Prometheus waits 10 s.
const scrapePatience = 5 * time.Second

// counts are the counters of a datapath; nil: the datapath does not count.
type counts = map[api.PortName]datapath.Count

// carried exports the counters of each Service port at the time of the scrape. The loop reads them, because no other
// goroutine may call the datapath. Counters of zero are left out: of 50,000 Services most nodes see few.
type carried struct {
	ask  chan chan<- counts
	what []figure
}

// A figure is one number of a Count.
type figure struct {
	desc  *prometheus.Desc
	value func(datapath.Count) uint64
}

func newCarried() *carried {
	c := &carried{ask: make(chan chan<- counts)}
	add := func(name, help string, value func(datapath.Count) uint64) {
		d := prometheus.NewDesc("fairway_service_"+name+"_total", help, []string{"namespace", "service", "port"}, nil)
		c.what = append(c.what, figure{d, value})
	}
	add("connections", "Connections and UDP flows sent to an endpoint (with --count-traffic)", func(c datapath.Count) uint64 { return c.Connections })
	add("packets", "Packets to and from endpoints (with --count-traffic)", func(c datapath.Count) uint64 { return c.Packets })
	add("bytes", "Bytes to and from endpoints (with --count-traffic)", func(c datapath.Count) uint64 { return c.Bytes })
	add("rejects", "Packets rejected because the Service has no endpoint", func(c datapath.Count) uint64 { return c.Rejects })
	add("drops", "Packets dropped because no endpoint is on this node or the source is not allowed", func(c datapath.Count) uint64 { return c.Drops })
	return c
}

// Describe implements prometheus.Collector.
func (c *carried) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.what {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector. It exports nothing if the loop is busy for too long.
func (c *carried) Collect(out chan<- prometheus.Metric) {
	patience := time.NewTimer(scrapePatience)
	defer patience.Stop()
	reply := make(chan counts, 1)
	select {
	case c.ask <- reply:
	case <-patience.C:
		return
	}
	for name, n := range <-reply { // the loop has accepted the question and will answer
		for _, f := range c.what {
			if v := f.value(n); v > 0 {
				out <- prometheus.MustNewConstMetric(f.desc, prometheus.CounterValue, float64(v), name.Namespace, name.Name.Name, name.Port)
			}
		}
	}
}
