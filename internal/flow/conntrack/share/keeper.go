package share

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

//go:embed rules.nft
var rulesText string

const (
	// reasonOver is the reason of the event for a pod over its share.
	reasonOver = "PodOverShare"
	// lookPause is the time between two looks at the number of flows. countPause is the time after a count: a dump of
	// 100,000 flows takes 0.2 s.
	lookPause, countPause = time.Second, 5 * time.Second
	// timeout limits one pass. endTimeout limits the removal of the table when the agent ends.
	timeout, endTimeout = 30 * time.Second, 5 * time.Second
)

// A Keeper keeps the table in the network namespace of the goroutine that calls Run.
type Keeper struct {
	Log *slog.Logger
	// Registry gets the metric fairway_conntrack_refused_pods. Nil: no metric.
	Registry prometheus.Registerer
	// Pods returns the address ranges of the node's pods. Other addresses, and the node's own, have no share.
	Pods func() []netip.Prefix
	// Event is called when more pods are over their share.
	Event func(reason, message string)
	// Now gets a message about all pods over their share after each change. Empty: there are none.
	Now func(message string)
	// Fill returns the number of flows and its limit. Nil: the kernel's.
	Fill func() (flows, limit int, ok bool)

	flows   *conntrack.Table
	rules   *nft.Table
	refused prometheus.Gauge
	over    map[netip.Addr]int // the pods over their share, with their flows
	state   state              // of the kernel's table
}

// A state is what the Keeper knows about the kernel's table.
type state uint8

const (
	unknown state = iota // an earlier agent may have left a table
	absent
	written
)

// init prepares the tables. It does not access the kernel.
func (k *Keeper) init() {
	k.flows, k.rules = conntrack.New(conntrack.Config{Log: k.Log}), nft.New(numbers.TableConntrack)
	k.refused = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fairway", Name: "conntrack_refused_pods", Help: "Addresses of pods whose new connections are dropped, because they exceed their share of a nearly full conntrack table"})
	if k.Registry != nil {
		k.Registry.MustRegister(k.refused)
	}
	if k.Fill == nil {
		k.Fill = conntrack.Fill
	}
}

// Run keeps the table until ctx ends, and removes it then.
func (k *Keeper) Run(ctx context.Context) error {
	k.init()
	defer k.end(context.WithoutCancel(ctx))
	timer := time.NewTimer(lookPause)
	defer timer.Stop()
	failed := false
	for ctx.Err() == nil {
		pause := lookPause
		counted, err := k.pass(ctx)
		if counted || err != nil {
			pause = countPause
		}
		if err != nil && !failed && ctx.Err() == nil {
			k.Log.Warn("one pod may fill the conntrack table [raise nf_conntrack_max: component conntrack]", "err", err, "again", pause)
		}
		failed = err != nil
		timer.Reset(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return nil
}

// pass looks once, and counts the pods' flows if the table is nearly full.
func (k *Keeper) pass(ctx context.Context) (counted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	flows, limit, ok := k.Fill()
	if !ok || !counting(flows, limit, len(k.over) > 0) {
		return false, k.refuse(ctx, nil, flows, limit)
	}
	held, err := k.count(ctx)
	if err != nil {
		return true, fmt.Errorf("count the pods' flows: %w", err)
	}
	return true, k.refuse(ctx, overShare(held, k.over, flows, limit), flows, limit)
}

// count returns the number of flows that each of the node's pods has opened.
func (k *Keeper) count(ctx context.Context) (map[netip.Addr]int, error) {
	own, err := conntrack.LocalAddrs()
	if err != nil {
		return nil, err
	}
	pods, held := k.Pods(), map[netip.Addr]int{}
	_, err = k.flows.Audit(ctx, nil, func(e conntrack.Entry) bool {
		a := e.Client().Addr()
		if slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) }) && !own[a] {
			held[a]++
		}
		return false
	})
	return held, err
}

// refuse makes the kernel drop new connections of the pods in over, and no others.
func (k *Keeper) refuse(ctx context.Context, over map[netip.Addr]int, flows, limit int) (err error) {
	switch {
	case len(over) > 0:
		k.state = written
		err = k.write(ctx, over)
	case k.state != absent:
		if err = k.rules.Delete(ctx); err == nil {
			k.state = absent
		}
	}
	if err != nil {
		k.rules.Close()
		return fmt.Errorf("write table %s: %w", numbers.TableConntrack, err)
	}
	k.report(over, flows, limit)
	k.over = over
	return nil
}

// write loads the rules if the kernel lacks them, and writes the elements that differ.
func (k *Keeper) write(ctx context.Context, over map[netip.Addr]int) error {
	program := &nft.Ruleset{Source: rulesText, Data: map[string]any{"Priority": numbers.HookShare}}
	if _, err := k.rules.Load(ctx, program, false); err != nil {
		return err
	}
	want := map[string]map[string]string{"over4": {}, "over6": {}}
	for a := range over {
		set := "over6"
		if a.Is4() {
			set = "over4"
		}
		want[set][string(a.AsSlice())] = ""
	}
	ws, err := k.rules.Differences(ctx, want, "over4", "over6")
	if err != nil {
		return err
	}
	return k.rules.Commit(ctx, nil, ws)
}

// report reports the pods that are refused now.
func (k *Keeper) report(over map[netip.Addr]int, flows, limit int) {
	k.refused.Set(float64(len(over)))
	if len(over) == 0 {
		if len(k.over) > 0 {
			k.Log.Info("all pods open new connections again", "flows", flows, "max", limit)
			k.Now("")
		}
		return
	}
	var pods []string
	more := false
	for _, a := range slices.SortedFunc(maps.Keys(over), netip.Addr.Compare) {
		pods = append(pods, fmt.Sprintf("%v (%d flows)", a, over[a]))
		_, was := k.over[a]
		more = more || !was
	}
	message := fmt.Sprintf("new connections of pods are dropped, because the conntrack table has %d of %d flows, and these pods have most: %s [fewer connections of these pods, or raise nf_conntrack_max: component conntrack]", flows, limit, strings.Join(pods, ", "))
	k.Now(message)
	if more {
		k.Log.Warn(message)
		k.Event(reasonOver, message)
	}
}

// end removes the table of this Keeper, because without a Keeper no pod gets out of it.
func (k *Keeper) end(ctx context.Context) {
	defer k.flows.Close()
	defer k.rules.Close()
	if k.state != written {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := k.refuse(ctx, nil, 0, 0); err != nil {
		k.Log.Warn("pods over their share remain without new connections until the next agent starts", "err", err)
	}
}

// Remove removes the table, if it is there.
func Remove(ctx context.Context) error {
	if err := nft.New(numbers.TableConntrack).Delete(ctx); err != nil {
		return fmt.Errorf("remove table %s: %w", numbers.TableConntrack, err)
	}
	return nil
}
