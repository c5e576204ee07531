package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A Datapath is a datapath whose writes to the kernel can fail on request. FailWrites makes each write call f first,
// and fail with its error. Nil ends that.
type Datapath interface {
	datapath.Datapath
	FailWrites(f func() error)
}

// Open returns a new instance of the datapath, like a process that starts.
type Open func(t testing.TB) Datapath

// A suite is the suite for one datapath, of some size.
type suite struct {
	open        Open
	services    int               // number of Services in a large table
	changes     int               // number of tables in a sequence
	patience    time.Duration     // for an answer that must come; testnet.Patience is for others
	unsupported map[string]string // the datapath's exemptions, from differences.go
	offers      service.Algorithms
}

// parallel is how many parts and scenarios run at a time. On two cores more would delay each other, and a late answer
// looks like none.
const parallel = 3

// Run runs the suite. It takes about 20 seconds on two cores.
func Run(t *testing.T, open Open) {
	s := newSuite(t, open)
	s.run(t)
}

// RunScenarios runs the scenarios and the parts counted, refused and attracted, for a second variant of a mechanism that passes the
// whole suite.
func RunScenarios(t *testing.T, open Open) {
	s := newSuite(t, open)
	s.scenarios(t, s.slots())
	t.Run("counted", func(t *testing.T) { s.counted(t) })
	t.Run("refused", func(t *testing.T) { s.refused(t) })
	t.Run("attracted", func(t *testing.T) { s.attracted(t) })
}

func newSuite(t testing.TB, open Open) suite {
	dp := open(t)
	defer dp.Close()
	cannot := map[string]string{}
	maps.Copy(cannot, unsupported(dp.Info().Name))
	if !testnet.NATsSCTP() {
		cannot["sctp"] = "the kernel's connection tracking does not know SCTP: its frontends are compared by Adopt alone"
	}
	return suite{open: open, services: 3000, changes: 150, patience: 5 * time.Second, unsupported: cannot, offers: dp.Info().Capabilities.Algorithms}
}

// A part is one test of the suite.
type part struct {
	name string
	run  func(suite, testing.TB)
}

func parts() []part {
	return []part{
		{"empty", suite.empty},
		{"random", suite.random},
		{"large", suite.large},
		{"adopt", suite.adopt},
		{"cleanup", suite.cleanup},
		{"established", suite.established},
		{"continuity", suite.continuity},
		{"faults", suite.faults},
		{"failures", suite.failures},
		{"spread", suite.spread},
		{"flushed", suite.flushed},
		{"contexts", suite.contexts},
		{"wide", suite.wide},
		{"affinity", suite.affinity},
		{"affinity-local", suite.affinityLocal},
		{"invalid", suite.invalid},
		{"ports", suite.ports},
		{"same-port", suite.samePort},
		{"algorithms", suite.algorithms},
		{"counted", suite.counted},
		{"explained", suite.explained},
		{"sctp", suite.sctp},
		{"refused", suite.refused},
		{"attracted", suite.attracted},
	}
}

// slots bounds the tests at a time. Send to take a slot, receive to give it back.
func (s suite) slots() chan struct{} { return make(chan struct{}, parallel) }

func (s suite) run(t *testing.T) {
	slots := s.slots()
	t.Run("scenarios", func(t *testing.T) {
		t.Parallel()
		s.scenarios(t, slots)
	})
	for _, p := range parts() {
		t.Run(p.name, func(t *testing.T) {
			if why := s.unsupported[p.name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			p.run(s, t)
		})
	}
}

// scenarios runs every scenario: the packets that it names, and a packet from each place to each frontend of its table.
func (s suite) scenarios(t *testing.T, slots chan struct{}) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		t.Run(one.Name, func(t *testing.T) {
			if why := s.unsupported["affinity"]; why != "" && strings.HasPrefix(one.Name, "affinity") {
				t.Skip(why)
			}
			if why := s.unsupported["weights"]; why != "" && strings.HasPrefix(one.Name, "weights") {
				t.Skip(why)
			}
			if why := s.unsupported["scenarios/"+one.Name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			report(t, s.scenario(t, one))
		})
	}
}

// load reads the scenarios of package service.
func load() ([]*scenario.Scenario, error) {
	dir, err := scenario.Dir()
	if err != nil {
		return nil, err
	}
	return scenario.Load(dir)
}

func (s suite) scenario(t testing.TB, one *scenario.Scenario) error {
	table := one.Offer(s.offers).Table()
	r := newRig(t, s, one.Facts.Name, one.Endpoints())
	if err := r.sync(table); err != nil {
		return err
	}
	packets, carried := r.everywhere(table), r.supportedPart(table)
	for _, p := range one.Packets {
		got, ok := scenario.Predict(carried, p)
		if ok && (p.Agrees(got) || !slices.Contains(r.dp.Info().Capabilities.Protocols, p.Proto)) {
			p.Want = got // has the source too
		}
		packets = append(packets, p)
	}
	return errors.Join(r.checkSynced(table), r.packets(packets), r.restart(table))
}

// report fails the test with each error that err joins.
func report(t testing.TB, err error) {
	t.Helper()
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			report(t, e)
		}
	} else if err != nil {
		t.Error(err)
	}
}

// checkSynced checks that the kernel has the synced table, and that a second Sync writes nothing.
func (r *rig) checkSynced(want *service.Table) error {
	return r.node.Do(func() error {
		got, err := r.dp.Adopt(context.Background())
		if err != nil {
			return fmt.Errorf("adopt: %w", err)
		}
		if err := compareTables(r.supportedPart(want), got.Table); err != nil {
			return fmt.Errorf("adopt after sync: %w", err)
		}
		stats, err := r.dp.Sync(context.Background(), want)
		if err != nil {
			return fmt.Errorf("sync the same again: %w", err)
		}
		if stats.Frontends+stats.Added+stats.Deleted > 0 {
			return fmt.Errorf("sync of the same table wrote: %+v", stats)
		}
		return nil
	})
}

// supportedPart returns the table that the datapath can carry: it rejects ports of other protocols.
func (r *rig) supportedPart(t *service.Table) *service.Table {
	protocols := r.dp.Info().Capabilities.Protocols
	route := func(was *service.Route) *service.Route {
		if was.Action == service.Forward {
			return &service.Route{Action: service.Reject}
		}
		return was
	}
	all := t.Sorted()
	for i, f := range all {
		if !slices.Contains(protocols, f.Proto) {
			rejected := *f
			rejected.Internal, rejected.External = route(f.Internal), route(f.External)
			all[i] = &rejected
		}
	}
	return service.NewTable(t.Settings, all)
}

// restart checks that a new instance adopts the kernel's state.
func (r *rig) restart(want *service.Table) error {
	r.reopen()
	if err := r.checkSynced(want); err != nil {
		return fmt.Errorf("a new instance: %w", err)
	}
	// A new instance that syncs first, like the agent.
	r.reopen()
	stats, err := r.syncStats(want)
	if err == nil && stats.Frontends+stats.Added+stats.Deleted > 0 {
		err = fmt.Errorf("the first sync of a new instance wrote: %+v", stats)
	}
	return err
}

// compareTables compares the parts of two tables that a datapath reads.
func compareTables(want, got *service.Table) error {
	var errs []error
	for i, c := range service.Diff(want, got) {
		if i == 5 {
			errs = append(errs, errors.New("… and more"))
			break
		}
		errs = append(errs, fmt.Errorf("%v: want %s, got %s", c.Key(), describe(c.Old), describe(c.New)))
	}
	if !want.Settings.Equal(got.Settings) {
		errs = append(errs, fmt.Errorf("settings: want %v, got %v", want.Settings, got.Settings))
	}
	return errors.Join(errs...)
}

func describe(f *service.Frontend) string {
	if f == nil {
		return "nothing"
	}
	return fmt.Sprintf("%v by %v inside %v/%v%v outside %v/%v%v", f.Service, f.Balance,
		f.Internal.Action, f.Internal.Masquerade, f.Internal.Endpoints, f.External.Action, f.External.Masquerade, f.External.Endpoints)
}

// objects returns a generator of random objects that the datapath can serve.
func (s suite) objects(rng *rand.Rand) *scenario.Random {
	gen := scenario.NewRandom(rng)
	gen.NoAffinity, gen.NoWeights, gen.Algorithms = s.unsupported["affinity"] != "", s.unsupported["weights"] != "", s.offers
	return gen
}
