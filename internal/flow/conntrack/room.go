package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// reasonFull is the reason of the event that the table is nearly full.
	reasonFull = "ConntrackFull"
	// lookRoom is the pause between two looks: a pod that sends 10,000 first packets a second fills a table of
	// 262,144 flows in half a minute.
	lookRoom = 5 * time.Second
	// Of the table's flows, in percent: from nearlyFull on it is said, and below enoughRoom it is over.
	nearlyFull, enoughRoom = 90, 80
)

// Room looks whether the kernel's table has room for new flows. All pods share it, a pod can fill it, and
// then the kernel drops the first packets of everybody's new flows, and says so in its own log alone.
type Room struct {
	Log *slog.Logger
	// Registry gets the metrics fairway_conntrack_flows and fairway_conntrack_max_flows. Nil: nothing is measured.
	Registry prometheus.Registerer
	// Event is told when the table begins to be nearly full.
	Event func(reason, message string)
	// Now is told when it begins, and with an empty text when there is room again.
	Now func(message string)

	root string // of /proc; empty: the machine's
	full bool   // at the last look
}

// Run looks every few seconds, in the network namespace of the caller's thread, until ctx ends,
// which is no error.
func (r *Room) Run(ctx context.Context) error {
	flows := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "conntrack_flows", Help: "Flows that the kernel remembers in this network namespace"})
	most := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "conntrack_max_flows", Help: "Flows that the kernel remembers at most; more are dropped"})
	if r.Registry != nil {
		r.Registry.MustRegister(flows, most)
	}
	tick := time.NewTicker(lookRoom)
	defer tick.Stop()
	for {
		if now, limit, ok := r.read(); ok {
			flows.Set(float64(now))
			most.Set(float64(limit))
			r.report(now, limit)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// read returns how many flows there are and may be; not ok: conntrack is not loaded yet, or has no limit.
func (r *Room) read() (now, limit int, ok bool) {
	k := sysctls{root: "/" + r.root}
	now, failed := k.get(parameter("nf_conntrack_count"))
	limit, err := k.get(parameter("nf_conntrack_max"))
	return now, limit, failed == nil && err == nil && limit > 0
}

// report says that the table begins to be nearly full, or has room again.
func (r *Room) report(now, limit int) {
	switch percent := now * 100 / limit; {
	case !r.full && percent >= nearlyFull:
		r.full = true
		message := fmt.Sprintf("the conntrack table has %d of %d flows; of new connections the first packet is dropped when it is full "+
			"[find who has so many, `conntrack -L | grep -o 'src=[^ ]*' | sort | uniq -c | sort -n | tail`, or raise nf_conntrack_max: component conntrack]", now, limit)
		r.Log.Warn(message)
		r.Event(reasonFull, message)
		r.Now(message)
	case r.full && percent < enoughRoom:
		r.full = false
		r.Log.Info("the conntrack table has room again", "flows", now, "max", limit)
		r.Now("")
	}
}
