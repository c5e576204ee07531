package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// longestOutage is how long new connections may be refused while one datapath takes over from another.
const longestOutage = time.Second

// Switch switches between modes on one node, under load, over every ordered pair. Each time the next mode syncs the
// table, and then the one before is removed, as in package takeover. No connection and no UDP flow ends, no client is
// refused for longer than a second, and no trace of the old mode is left.
func Switch(t *testing.T, modes map[string]Open) {
	names := slices.Sorted(maps.Keys(modes))
	if len(names) < 2 {
		t.Fatal("there is nothing to switch between")
	}
	w := &walk{t: t, table: tableOf(
		web("a", "10.96.0.1:80", api.TCP, 0, 1, 2), web("a", "10.96.0.1:80", api.UDP, 0, 1, 2),
		web("load", "10.96.0.2:80", api.TCP, 0, 1, 2, 3, 4, 5))}
	w.rig = sixRig(t, suite{open: modes[names[0]], patience: 10 * time.Second})
	w.keepFlows()
	report(t, w.rig.sync(w.table))
	stop := w.load()
	for _, name := range tour(names) {
		w.switchTo(name, modes[name])
	}
	report(t, stop())
	for _, c := range w.conns {
		c.Close()
	}
}

// keepFlows makes UDP flows live longer than the test: a flow that ends by its timeout was not lost. In virtual time a
// minute passes in a moment in which all wait.
func (w *walk) keepFlows() {
	for _, flows := range []string{"udp_timeout", "udp_timeout_stream"} {
		report(w.t, w.rig.node.Sysctl("netfilter/nf_conntrack_"+flows, "36000"))
	}
}

// tour returns a tour over every ordered pair of names, beginning with the first.
func tour(names []string) (all []string) {
	left := map[string][]string{}
	for _, n := range names {
		left[n] = slices.DeleteFunc(slices.Clone(names), func(o string) bool { return o == n })
	}
	// Hierholzer's algorithm: continue until stuck, and insert the missed pairs.
	stack := []string{names[0]}
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		if len(left[at]) == 0 {
			all, stack = append(all, at), stack[:len(stack)-1]
			continue
		}
		stack = append(stack, left[at][0])
		left[at] = left[at][1:]
	}
	slices.Reverse(all)
	return all[1:]
}

// A walk is the state of a running Switch.
type walk struct {
	t     *testing.T
	rig   *rig
	table *service.Table
	conns []*openConn
}

// An openConn is a connection that must stay established.
type openConn struct {
	*testnet.Conn
	desc string
	at   netip.AddrPort
}

// openConns opens a connection and a flow from every place.
func (w *walk) openConns(mode string) (all []*openConn) {
	w.t.Helper()
	world := &scenario.World
	to := netip.MustParseAddrPort("10.96.0.1:80")
	for _, place := range []scenario.Place{world.Pod, world.Node, world.Outside} {
		for _, network := range []string{"tcp", "udp"} {
			what := fmt.Sprintf("%s from %s, made in mode %s", network, place.Name, mode)
			c, err := w.rig.hosts[place.V4].Dial(network, to, w.rig.suite.patience)
			if err != nil {
				w.t.Fatalf("%s: %v", what, err)
			}
			got := c.Ask(w.rig.suite.patience)
			if got.Outcome != testnet.Answered {
				w.t.Fatalf("%s: %v", what, got)
			}
			all = append(all, &openConn{c, what, got.At})
		}
	}
	return all
}

// checkOpen checks that connections are established, each with its endpoint.
func (w *walk) checkOpen(when string, all []*openConn) {
	w.t.Helper()
	for _, c := range all {
		if got := c.Ask(w.rig.suite.patience); got.Outcome != testnet.Answered || got.At != c.at {
			w.t.Errorf("%s: %s: %v, was at %v", when, c.desc, got, c.at)
		}
	}
}

// switchTo makes another datapath take over.
func (w *walk) switchTo(name string, open Open) {
	w.t.Helper()
	old, when := w.rig.dp, fmt.Sprintf("from %s to %s", w.rig.dp.Info().Name, name)
	own := w.openConns(old.Info().Name)
	next := w.rig.place(open(w.t))
	w.rig.dp = next
	if err := w.rig.sync(w.table); err != nil {
		w.t.Fatalf("%s: %v", when, err)
	}
	done, err := w.drain(old)
	if err != nil {
		w.t.Fatalf("%s: %v", when, err)
	}
	w.checkOpen(when, slices.Concat(w.conns, own))
	if done {
		w.conns = append(w.conns, own...)
	} else {
		// Connections that the old datapath carries itself need it until they end.
		for _, c := range own {
			c.Close()
		}
		w.drained(when, old)
	}
	w.checkOpen(when, w.conns)
	report(w.t, w.rig.node.Do(func() error {
		left, err := old.Adopt(context.Background())
		if err == nil {
			err = compareTables(&service.Table{}, left.Table)
		}
		if err != nil {
			return fmt.Errorf("%s: what is left of the old mode: %w", when, err)
		}
		return nil
	}))
	old.Close()
	if err := w.rig.checkSynced(w.table); err != nil {
		w.t.Errorf("%s: %v", when, err)
	}
}

func (w *walk) drain(dp Datapath) (done bool, err error) {
	err = w.rig.node.Do(func() error { done, err = dp.Drain(context.Background()); return err })
	return done, err
}

// drainTime is how long the old mode may take to notice that its connections have ended. It does not notice the end of
// UDP flows, which end by timeout.
const drainTime = 3 * time.Second

// drained waits until Drain of the old mode is done. If only UDP flows can be left, it cleans the mode up.
func (w *walk) drained(when string, dp Datapath) {
	w.t.Helper()
	until := time.Now().Add(drainTime)
	for {
		done, err := w.drain(dp)
		if err != nil {
			w.t.Fatalf("%s: %v", when, err)
		}
		if done {
			return
		}
		if time.Now().After(until) {
			report(w.t, w.rig.node.Do(func() error { return dp.Cleanup(context.Background()) }))
			return
		}
		time.Sleep(100 * time.Millisecond) // poll
	}
}

// load opens new connections until stop is called. stop reports whether any were refused for too long.
func (w *walk) load() (stop func() error) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	world := &scenario.World
	places := []scenario.Place{world.Pod, world.Outside}
	errs := make([]error, len(places))
	for i, place := range places {
		wait.Go(func() { errs[i] = w.knock(place, done) })
	}
	stop = sync.OnceValue(func() error {
		close(done)
		wait.Wait()
		return errors.Join(errs...)
	})
	w.t.Cleanup(func() { _ = stop() })
	return stop
}

// knock connects again and again. A busy machine may answer late, so only the time of refusals in a row counts. One
// refusal alone counts as a moment.
func (w *walk) knock(place scenario.Place, done chan struct{}) error {
	client := w.rig.hosts[place.V4]
	var since time.Time
	refused, answered, longest := 0, 0, time.Duration(0)
	for {
		select {
		case <-done:
			if answered == 0 || longest > longestOutage {
				return fmt.Errorf("%s: %d connections, refused for up to %v", place.Name, answered, longest)
			}
			return nil
		default:
		}
		begin := time.Now()
		got := client.Ask("tcp", netip.MustParseAddrPort("10.96.0.2:80"), w.rig.suite.patience)
		switch got.Outcome {
		case testnet.Answered:
			answered++
			if refused > 1 {
				longest = max(longest, begin.Sub(since))
			}
			refused = 0
		case testnet.Dropped:
			return fmt.Errorf("%s: after %d connections one was not answered at all: %v", place.Name, answered, got)
		default:
			if refused++; refused == 1 {
				since = begin
			}
			if refused > 1 && begin.Sub(since) > longestOutage {
				return fmt.Errorf("%s: refused for more than %v: %v", place.Name, longestOutage, got)
			}
		}
	}
}

// SwitchKeepsClients switches between two modes and back, with the algorithms that choose by an address. Each client
// stays at its endpoint, although neither mode remembers it. So nftables' hash and map in the kernel must equal those
// that userspace computes.
func SwitchKeepsClients(t *testing.T, modes map[string]Open, from, to string) {
	by := []service.Algorithm{service.Maglev, service.SourceHash, service.DestHash}
	fronts := []*service.Frontend{
		web("a", "10.96.0.1:80", api.TCP, 0, 1, 2), web("a", "10.96.0.1:80", api.UDP, 0, 1, 2)}
	for _, a := range by {
		f := web("by-"+a.String(), fmt.Sprintf("10.96.1.%d:80", 1+a), api.TCP, 0, 1, 2, 3, 4, 5)
		f.Balance = a
		f.Internal.Endpoints[2].Weight = 2
		fronts = append(fronts, f)
	}
	w := &walk{t: t, table: tableOf(fronts...)}
	w.rig = sixRig(t, suite{open: modes[from], patience: 10 * time.Second})
	report(t, w.rig.sync(w.table))
	homes := func() (all [][]netip.AddrPort) {
		for _, f := range fronts[2:] {
			all = append(all, w.rig.homes(t, f.Addr))
		}
		return all
	}
	before := homes()
	for _, name := range []string{to, from} {
		w.switchTo(name, modes[name])
		for i, now := range homes() {
			if !slices.Equal(now, before[i]) {
				t.Errorf("%v: in mode %s clients are at %v, and were at %v", by[i], name, now, before[i])
			}
		}
	}
	for _, c := range w.conns {
		c.Close()
	}
}
