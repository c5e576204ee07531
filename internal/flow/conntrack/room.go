package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// reasonFull is the reason of the event for a nearly full table.
	reasonFull = "ConntrackFull"
	// lookRoom is the pause between two looks. A pod that sends 10,000 first packets a second fills a table of 262,144
	// flows in half a minute.
	lookRoom = 5 * time.Second
	// Shares of the table in percent: Room reports a table from nearlyFull on, until it is below enoughRoom.
	nearlyFull, enoughRoom = 90, 80
)

// Room watches whether the kernel's table has room for new flows. All pods share the table, and one pod can fill it.
// Then the kernel drops the first packets of all new flows, and says so in its own log only.
type Room struct {
	Log *slog.Logger
	// Registry gets the metrics fairway_conntrack_flows and fairway_conntrack_max_flows. Nil: no metrics.
	Registry prometheus.Registerer
	// Event is called when the table becomes nearly full.
	Event func(reason, message string)
	// Now is called when the table becomes nearly full, and with an empty text when it has room again.
	Now func(message string)

	root string // the directory that has proc; empty: /
	full bool   // the table was nearly full at the last look
}

// Run looks every few seconds, in the network namespace of the caller's thread. It returns nil when ctx ends.
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

// Fill returns the number of flows in the kernel's table and its limit. ok is false if conntrack is not loaded yet, or
// has no limit.
func Fill() (flows, limit int, ok bool) { return new(Room).read() }

// read returns the number of flows and its limit. ok is false if conntrack is not loaded yet, or has no limit.
func (r *Room) read() (now, limit int, ok bool) {
	k := sysctls{root: "/" + r.root}
	now, failed := k.get(parameter("nf_conntrack_count"))
	limit, err := k.get(parameter("nf_conntrack_max"))
	return now, limit, failed == nil && err == nil && limit > 0
}

// report reports that the table is nearly full, or has room again.
func (r *Room) report(now, limit int) {
	switch percent := now * 100 / limit; {
	case !r.full && percent >= nearlyFull:
		r.full = true
		message := fmt.Sprintf("the conntrack table has %d of %d flows; when it is full, the kernel drops the first packets of new connections "+
			"[find the clients with the most flows, `conntrack -L | grep -o 'src=[^ ]*' | sort | uniq -c | sort -n | tail`, or raise nf_conntrack_max: component conntrack]", now, limit)
		r.Log.Warn(message)
		r.Event(reasonFull, message)
		r.Now(message)
	case r.full && percent < enoughRoom:
		r.full = false
		r.Log.Info("the conntrack table has room again", "flows", now, "max", limit)
		r.Now("")
	}
}
