// Package nftables is the datapath that uses nf_tables.
//
//	Table ─ Diff ─→ changes ─ hold ─→ what the kernel shall hold ─ plan ─→ writes ─ commit ─→ kernel
//	                            ↑                                                              │
//	                            └───────────────── state ←───────────── read (first, or after an error)
//
// The program (ruleset.nft.tmpl) is constant; it is loaded as text once per version and
// says how a packet goes. A Service is a handful of elements of its maps, so that a
// change costs what changed, with ten Services or fifty thousand.
//
// It hides how a Table is laid out in those maps. It promises, beyond the contract in
// package datapath, that an endpoint which stays is never moved, that between two
// transactions of one Sync every frontend is whole, and that it touches nothing but its
// own table, inet fairway.
//
// It needs the program nft once, at the first Sync of a new version, and a kernel of
// 5.13 or later (reject in prerouting, concatenated data in maps).
package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is kube-proxy's: bit 14.
const DefaultMark = 1 << 14

// Config says how the datapath works. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	program *program
	kernel  *kernel
	table   *service.Table // what the kernel holds; nil: not known, read it
	state   *state         // the same, as elements
	// generation and rules are what Check compares: the kernel's count of changes, and
	// the handles of our chains and rules, both after our last commit.
	generation uint32
	rules      []string
	verify     time.Time   // when Check may read the elements again
	swept      map[id]bool // ids to sweep once more at the next Check
	reload     bool        // the rules were changed: load the program again
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	p, err := newProgram(cfg.Mark)
	if err != nil {
		return nil, err
	}
	return &Datapath{
		program: p,
		kernel:  &kernel{table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}},
	}, nil
}

// Name returns "nftables".
func (d *Datapath) Name() string { return "nftables" }

// Algorithms implements datapath.Datapath.
func (d *Datapath) Algorithms() service.Algorithms { return service.AlgorithmsOf(service.Random) }

// FailWrites makes every write ask f first and fail with its error. It is for tests
// that inject faults.
func (d *Datapath) FailWrites(f func() error) { d.kernel.fail = f }

// Program returns the ruleset that is loaded, as text for people.
func (d *Datapath) Program() (string, error) { return d.program.text(nil) }

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.Close() // the next Sync asks the kernel
		return datapath.Stats{}, fmt.Errorf("sync nftables: %w", err)
	}
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats := datapath.Stats{Full: d.table == nil}
	if stats.Full {
		if err := d.learn(ctx); err != nil {
			return stats, err
		}
	}
	before := d.generation
	d.kernel.commits = 0
	r := d.render(want, stats.Full)
	if err := d.apply(r); err != nil {
		return stats, err
	}
	if err := d.sweep(r.learners.gone); err != nil {
		return stats, err
	}
	d.swept = r.learners.gone
	if err := d.remember(before, stats.Full || len(r.newWays)+len(r.oldWays)+len(r.learners.now) > 0); err != nil {
		return stats, err
	}
	d.table = want
	stats.Frontends = len(r.next)
	for _, w := range r.writes {
		if w.add {
			stats.Added++
		}
		if w.del {
			stats.Deleted++
		}
	}
	return stats, nil
}

// Close implements datapath.Datapath.
func (d *Datapath) Close() {
	d.table, d.state = nil, nil
	d.kernel.close()
}

// learn loads the program if it is not there and reads what the kernel holds.
func (d *Datapath) learn(ctx context.Context) error {
	loaded, err := d.program.load(ctx, d.kernel, d.reload)
	if err != nil {
		return err
	}
	if d.generation, err = d.kernel.generation(); err != nil {
		return err
	}
	s, err := d.kernel.read()
	if err != nil {
		return err
	}
	if loaded {
		clear(s.chains) // of another program: write them again
	}
	d.state, d.reload = s, false
	return nil
}

// apply writes r and, once that is done, takes note of it.
func (d *Datapath) apply(r *rendering) error {
	addWays := func(c *nftables.Conn) (bool, error) {
		for _, h := range r.newWays {
			if err := d.kernel.addWay(c, h, d.program.mark); err != nil {
				return false, err
			}
		}
		queued, err := r.learners.prepare(d.kernel, c, d.state)
		return queued || len(r.newWays) > 0, err
	}
	dropWays := func(c *nftables.Conn) (bool, error) {
		for _, h := range r.oldWays {
			if err := d.kernel.delWay(c, h); err != nil {
				return false, err
			}
		}
		queued, err := r.learners.finish(d.kernel, c, d.state)
		return queued || len(r.oldWays) > 0, err
	}
	if err := d.kernel.commit(addWays, r.writes); err != nil {
		return fmt.Errorf("write elements: %w", err)
	}
	if err := d.kernel.commit(dropWays, nil); err != nil {
		return fmt.Errorf("remove unused chains: %w", err)
	}
	for _, h := range r.newWays {
		d.state.chains[h] = true
	}
	for _, h := range r.oldWays {
		delete(d.state.chains, h)
		delete(d.state.uses, h)
	}
	for k, is := range r.next {
		d.state.put(k, is)
	}
	r.learners.note(d.state)
	note(d.state.hairpins, r.hairpins)
	note(d.state.reserved, r.reserved)
	d.state.settings = r.settings
	return nil
}

// note takes over counts that changed.
func note(all, changed map[netip.Addr]int) {
	for a, n := range changed {
		if n == 0 {
			delete(all, a)
			continue
		}
		all[a] = n
	}
}
