package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// A faultySwitch switches from one mode to another and back, again and again, and fails each time at another step.
// Connections from before the first try stay open to the end.
type faultySwitch struct {
	*walk
	modes    map[string]Open
	from, to string
	programs *childfault.Programs
}

// SwitchFaults switches from one mode to another and back under load, with a fault each time: a program fails at a
// system call, a write of the agent fails, or the agent ends between the new rules and the removal of the old ones.
// After each fault established connections continue, and new ones get answers. The next process finishes the switch,
// and no trace of the old mode is left.
func SwitchFaults(t *testing.T, modes map[string]Open, from, to string) {
	w := &walk{t: t, table: tableOf(
		web("a", "10.96.0.1:80", api.TCP, 0, 1, 2), web("a", "10.96.0.1:80", api.UDP, 0, 1, 2),
		web("load", "10.96.0.2:80", api.TCP, 0, 1, 2, 3, 4, 5), web("empty", "10.96.0.7:80", api.TCP))}
	w.rig = sixRig(t, suite{open: modes[from], patience: 10 * time.Second})
	for _, flows := range []string{"udp_timeout", "udp_timeout_stream"} {
		report(t, w.rig.node.Sysctl("netfilter/nf_conntrack_"+flows, "36000"))
	}
	names := []string{"nft"}
	for _, tool := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		names = append(names, tool, tool+"-save", tool+"-restore")
	}
	s := &faultySwitch{w, modes, from, to, childfault.Intercept(t, names...)}
	s.programs.Disarm()
	report(t, w.rig.sync(w.table))
	w.conns = w.openConns(from)
	stop := w.load()
	s.runAll()
	report(t, stop())
	for _, c := range w.conns {
		c.Close()
	}
}

// runAll tries all faults, alternately in both directions.
func (s *faultySwitch) runAll() {
	var tries [2][]func()
	for way := range tries {
		tries[way] = s.cases()
		s.from, s.to = s.to, s.from
	}
	for len(tries[0])+len(tries[1]) > 0 {
		for way := range tries {
			if len(tries[way]) == 0 { // switch without a fault
				report(s.t, s.run(context.Background(), nil))
			} else {
				tries[way][0]()
				tries[way] = tries[way][1:]
			}
			s.from, s.to = s.to, s.from
		}
	}
}

// cases switches without a fault, to count the steps. It returns a function for each fault.
func (s *faultySwitch) cases() (all []func()) {
	writes := 0
	s.programs.Arm(0, childfault.KilledBefore)
	report(s.t, s.run(context.Background(), func() error { writes++; return nil }))
	s.programs.Disarm()
	s.finish("no fault")
	s.programs.Each(childfault.Sample{Changes: 1}, func(name string, step int, f childfault.Fault) {
		all = append(all, func() { s.programFault(name, step, f) })
	})
	for fails := range writes {
		all = append(all, func() { s.writeFault(fails) })
	}
	return all
}

// programFault makes a program fail.
func (s *faultySwitch) programFault(name string, step int, f childfault.Fault) {
	s.t.Helper()
	s.programs.Arm(step, f)
	err := s.programs.Run(context.Background(), func(ctx context.Context) error { return s.run(ctx, nil) })
	steps := s.programs.Steps()
	s.programs.Disarm()
	if err == nil && !(len(steps) >= step && steps[step-1].Asks(f)) {
		s.t.Errorf("%s: no error", name)
	}
	if left := s.programs.Left(); left != nil {
		s.t.Errorf("%s: left %v", name, left)
	}
	s.finish(name)
}

// writeFault makes all writes after the first ones fail, as if the process ended there.
func (s *faultySwitch) writeFault(after int) {
	s.t.Helper()
	n, fault := 0, errors.New("injected fault")
	err := s.run(context.Background(), func() error {
		if n++; n > after {
			return fault
		}
		return nil
	})
	name := fmt.Sprintf("from write %d", after+1)
	if !errors.Is(err, fault) {
		s.t.Errorf("%s: error %v", name, err)
	}
	s.finish(name)
}

// run switches, with a fault in writes if f is not nil.
func (s *faultySwitch) run(ctx context.Context, f func() error) error {
	old, next := s.modes[s.from](s.t), s.modes[s.to](s.t) // as another process does
	defer old.Close()
	defer next.Close()
	if f != nil {
		for _, dp := range []Datapath{old, next} {
			dp.FailWrites(f)
		}
	}
	return s.rig.node.Do(func() error {
		if _, err := next.Sync(ctx, s.table); err != nil {
			return err
		}
		_, err := old.Drain(ctx)
		return err
	})
}

// finish checks the traffic after a fault, and finishes the switch in another process.
func (s *faultySwitch) finish(fault string) {
	s.t.Helper()
	name := fmt.Sprintf("%s to %s, %s", s.from, s.to, fault)
	s.checkTraffic(name)
	if err := s.run(context.Background(), nil); err != nil {
		s.t.Fatalf("%s: the next process cannot finish: %v", name, err)
	}
	s.checkTraffic(name + ", finished")
	s.checkEmpty(name, s.from)
}

// checkTraffic checks established connections and new ones.
func (s *faultySwitch) checkTraffic(when string) {
	s.t.Helper()
	s.checkOpen(when, s.conns)
	for _, place := range []scenario.Place{scenario.World.Pod, scenario.World.Outside} {
		c, err := s.rig.hosts[place.V4].Dial("tcp", s.table.Sorted()[0].Addr, s.rig.suite.patience)
		if err != nil {
			s.t.Errorf("%s: a new connection from %s: %v", when, place.Name, err)
			continue
		}
		c.Close()
	}
}

// checkEmpty checks that no rules of a mode are left.
func (s *faultySwitch) checkEmpty(when, mode string) {
	s.t.Helper()
	dp := s.modes[mode](s.t)
	defer dp.Close()
	report(s.t, s.rig.node.Do(func() error {
		left, err := dp.Adopt(context.Background())
		if err == nil && left.Found {
			err = errors.New("rules are left")
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", when, mode, err)
		}
		return nil
	}))
}
