package nftset

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A State is what a mode has read of the kernel.
type State interface {
	// Explain returns the kernel objects that make a frontend work; none if there is no such frontend.
	Explain(k service.Key) ([]datapath.Object, error)
}

// A Syncer is the table of a mode over its life: what the kernel runs, what was read from
// it, and whether another program changed it. S is the state that a mode reads.
//
//	Adopt ─→ S                       another table or none: the rules of p are not reached yet
//	Start, Begin ─→ S, Commit… ─→ Switch ─→ Commit… ─→ End     a Sync without a state
//	Start, Commit… ───────────────────────────────────→ End     a Sync with a state
//	Check                                               in between
//
// After an error the mode has to Forget, so that the next Sync begins without a state. It
// belongs to one goroutine. Make one with NewSyncer.
type Syncer[S State] struct {
	mode  string
	Table *nft.Table
	Watch *nft.Watch // over the table since it was read

	read    func(context.Context) (S, error)
	renames []Rename
	late    []Rename // the renamed sets to which packets add elements
	reader  *Reader  // of the last read

	adopted    *reading[S]    // what Adopt has read, for the next Begin; may be nil
	pending    bool           // the kernel does not run our program yet
	unpruned   bool           // the program is or was loaded, and no Sync has ended since
	reload     bool           // what the kernel holds is not ours: load the program again
	wantCounts map[string]int // during a Sync without a state: how many elements sets must have
	verify     time.Time      // when Check may read the elements again
}

// A reading is a state that was read. It is valid as long as the generation is the same.
type reading[S State] struct {
	state      S
	watch      *nft.Watch
	generation uint32
	counts     map[string]int
}

// NewSyncer returns the ruleset of a mode. read reads what the kernel holds, with a Reader of the
// ruleset; renames has the set names of former releases, late the renames of sets whose
// elements packets add.
func NewSyncer[S State](mode string, t *nft.Table, read func(context.Context) (S, error), renames, late []Rename) *Syncer[S] {
	return &Syncer[S]{mode: mode, Table: t, Watch: t.Watch(), read: read, renames: renames, late: late}
}

// Reader returns a reader of the table.
func (r *Syncer[S]) Reader(ctx context.Context) *Reader {
	r.reader = newReader(ctx, r.Table, r.renames)
	return r.reader
}

// Adopt reads what the kernel holds, and has it translated to a Table. With keep, the next
// Begin returns the same state, unless the table has changed in between.
func (r *Syncer[S]) Adopt(ctx context.Context, keep bool, translate func(S) (*service.Table, error)) (datapath.Adopted, error) {
	held, err := r.adopt(ctx, keep, translate)
	if err != nil {
		err = fmt.Errorf("adopt %s: %w", r.mode, err)
	}
	return held, err
}

func (r *Syncer[S]) adopt(ctx context.Context, keep bool, translate func(S) (*service.Table, error)) (datapath.Adopted, error) {
	nothing := datapath.Adopted{Table: &service.Table{}}
	chains, err := r.Table.Chains(ctx)
	if err != nil || len(chains) == 0 {
		return nothing, err
	}
	got, err := r.readAll(ctx)
	if err != nil {
		return nothing, err
	}
	if keep {
		r.adopted = got
	}
	table, err := translate(got.state)
	if err != nil {
		return nothing, err
	}
	return datapath.Adopted{Table: table, Found: true}, nil
}

// Explain reads everything, and returns the kernel objects in it that make a frontend work.
func (r *Syncer[S]) Explain(ctx context.Context, k service.Key) (all []datapath.Object, err error) {
	held, err := r.read(ctx)
	if err == nil {
		all, err = held.Explain(k)
	}
	if err != nil {
		return nil, fmt.Errorf("explain %s: %w", r.mode, err)
	}
	return all, nil
}

// Start begins a Sync, full: one without a state, which readKernel reads with Begin.
func (r *Syncer[S]) Start(ctx context.Context, full bool, readKernel func(context.Context) error) error {
	if full {
		if err := readKernel(ctx); err != nil {
			return err
		}
	}
	return r.Watch.Begin(ctx)
}

// readAll reads the state. The watch over the table begins before.
func (r *Syncer[S]) readAll(ctx context.Context) (got *reading[S], err error) {
	got = &reading[S]{watch: r.Table.Watch()}
	if err := got.watch.Begin(ctx); err != nil {
		return nil, err
	}
	if got.generation, err = r.Table.Generation(ctx); err != nil {
		return nil, err
	}
	if got.state, err = r.read(ctx); err == nil && r.reader != nil {
		got.counts = r.reader.counts
	}
	return got, err
}

// Begin returns what the kernel holds. If the kernel runs another program, or none, Begin
// also declares the sets of p, with the elements of a former release. Switch loads the rules
// later, when all elements that they need are there. If the kernel runs p with other rules
// than those of the last End, Begin loads p again. fresh says that the chains which p keeps
// must be written.
func (r *Syncer[S]) Begin(ctx context.Context, p *nft.Ruleset) (state S, fresh bool, err error) {
	if err := r.begin(ctx, p); err != nil {
		return state, false, r.describeError(ctx, p, err)
	}
	got, err := r.readOnce(ctx)
	if err != nil {
		return state, false, err
	}
	r.Watch, r.wantCounts, r.reload = got.watch, maps.Clone(got.counts), false
	return got.state, r.unpruned, nil
}

func (r *Syncer[S]) begin(ctx context.Context, p *nft.Ruleset) error {
	found, err := r.Table.Declare(ctx, p)
	if err != nil {
		return err
	}
	if r.pending = found != nft.Unchanged; r.pending {
		r.unpruned = true
		return Migrate(ctx, r.Table, r.renames)
	}
	sealed := false
	if !r.reload {
		if sealed, err = r.Table.Sealed(ctx, p); err != nil {
			return err
		}
	}
	if r.unpruned = !sealed; r.unpruned {
		_, err = r.Table.Load(ctx, p, true) // what it holds is read next
	}
	return err
}

// readOnce returns what Adopt has read if nothing has changed since; else it reads.
func (r *Syncer[S]) readOnce(ctx context.Context) (*reading[S], error) {
	if got := r.adopted; got != nil {
		r.adopted = nil
		gen, err := r.Table.Generation(ctx)
		if err != nil || gen == got.generation {
			return got, err
		}
	}
	return r.readAll(ctx)
}

// Pending reports whether the rules of the program are not reached yet: another program
// may still look up what the table has.
func (r *Syncer[S]) Pending() bool { return r.pending }

// Switch makes the kernel run p instead of another program, or of none. It does nothing if
// p runs. Chains that p keeps stay as they are: the mode writes them again before End.
func (r *Syncer[S]) Switch(ctx context.Context, p *nft.Ruleset) error {
	if !r.pending {
		return nil
	}
	did, err := r.Table.Load(ctx, p, true)
	if err == nil && did == nft.Recreated { // the next Sync starts from nothing
		r.reload, err = true, nft.ErrRecreated
	}
	if err != nil {
		return r.describeError(ctx, p, err)
	}
	r.pending = false
	return nil
}

// describeError adds to an error which rules the kernel runs.
func (r *Syncer[S]) describeError(ctx context.Context, p *nft.Ruleset, err error) error {
	this, another, failed := r.Table.Runs(ctx, p)
	switch {
	case failed != nil:
		return err
	case this:
		return fmt.Errorf("the kernel runs the new rules: %w", err)
	case another:
		return fmt.Errorf("the kernel runs the rules from before: %w", err)
	}
	return fmt.Errorf("the kernel runs no rules of ours: %w", err)
}

// Commit is that of the Table. It counts what is written.
func (r *Syncer[S]) Commit(ctx context.Context, prepare func(*nftables.Conn) (bool, error), ws []nft.Write) error {
	if err := r.Table.Commit(ctx, prepare, ws); err != nil {
		return err
	}
	for _, w := range ws {
		if w.Add && !w.Del {
			r.count(w.Set, +1)
		}
		if w.Del && !w.Add {
			r.count(w.Set, -1)
		}
	}
	return nil
}

// count adds to the elements of a set that was read.
func (r *Syncer[S]) count(set string, n int) {
	if _, counted := r.wantCounts[set]; counted {
		r.wantCounts[set] += n
	}
}

// Expect sets how many elements a set must have when a Sync without a state ends, where the
// mode writes elements otherwise than by Commit.
func (r *Syncer[S]) Expect(set string, n int) {
	if r.wantCounts != nil {
		r.wantCounts[set] = n
	}
}

// Chains says which chains over netlink a Sync wrote: those added and removed, or any.
type Chains struct {
	Added, Removed []string
	Any            bool
}

// End ends a Sync. It notes the rules, for Check and for the next process. A Sync without a
// state also removes what other programs left, and fails if the kernel holds another number
// of elements than was read and written.
func (r *Syncer[S]) End(ctx context.Context, p *nft.Ruleset, chains Chains) (err error) {
	full := r.wantCounts != nil
	if r.unpruned {
		if err := Migrate(ctx, r.Table, r.late); err != nil { // what packets added before the switch
			return err
		}
		if err := r.Table.Prune(ctx, p); err != nil {
			return fmt.Errorf("remove leftovers of another program: %w", err)
		}
	}
	if full {
		if err := r.compare(ctx); err != nil {
			return err
		}
	}
	if full || chains.Any {
		err = r.Watch.End(ctx, true)
	} else {
		err = r.Watch.EndChains(ctx, chains.Added, chains.Removed)
	}
	if err == nil && (full || chains.Any || len(chains.Added)+len(chains.Removed) > 0) {
		err = r.Watch.Seal(ctx, p)
	}
	if err == nil {
		r.wantCounts, r.unpruned = nil, false
	}
	return err
}

// compare compares how many elements the kernel holds with what was read and written.
func (r *Syncer[S]) compare(ctx context.Context) error {
	got, err := r.Table.Counts(ctx)
	if err != nil {
		return err
	}
	for set, want := range r.wantCounts {
		if n, counted := got[set]; counted && n != want {
			r.reload = true
			return fmt.Errorf("set %s holds %d elements after %d were written [another program changes table %s; it is read and repaired next]", set, n, want, r.Table.Name())
		}
	}
	return nil
}

// verifyShare bounds the time that Check spends reading: a node where another program
// changes nf_tables all the time must not spend more than a twentieth on it.
const verifyShare = 20

// Checks are what a mode adds to Check.
type Checks struct {
	Synced bool                             // the mode has a state; else the next Sync compares anyway
	Routed func() (bool, error)             // whether the routes that lead to the rules are there; nil: there are none
	Same   func(changed bool) (bool, error) // compares elements; changed: a table of the node has changed
	Always bool                             // Same is called also if no table of the node has changed
	Forget func()                           // drops the mode's state: the next Sync reads the kernel
}

// Check reports what another program has changed since Watch.End. It compares our chains
// and rules by their handles, and elements if any table of the node was changed. After a drift
// the mode has no state.
func (r *Syncer[S]) Check(ctx context.Context, c Checks) (drift datapath.Drift, err error) {
	if !c.Synced {
		return drift, nil
	}
	if c.Routed != nil {
		there, err := c.Routed()
		if err != nil {
			return drift, err
		}
		drift.Rules = !there
	}
	if !drift.Any() {
		drift, err = r.compareTable(ctx, c)
	}
	if drift.Any() {
		c.Forget()
	}
	return drift, err
}

// compareTable compares the table with what the last Sync left.
func (r *Syncer[S]) compareTable(ctx context.Context, c Checks) (drift datapath.Drift, err error) {
	change, accept, err := r.Watch.Look(ctx)
	switch {
	case err != nil:
		return drift, err
	case change == nft.Rules:
		r.reload = true
		return datapath.Drift{Rules: true}, nil
	case change == nft.Nothing && !c.Always, time.Now().Before(r.verify):
		return drift, nil
	}
	start := time.Now()
	ok, err := c.Same(change != nft.Nothing)
	if err != nil {
		return drift, err
	}
	r.verify = time.Now().Add(verifyShare * time.Since(start))
	if !ok {
		r.reload = true // some elements belong to the program
		return datapath.Drift{Elements: true}, nil
	}
	accept()
	return drift, nil
}

// Reload makes the next Begin load the program again.
func (r *Syncer[S]) Reload() { r.reload = true }

// Forget makes the next Sync read the kernel.
func (r *Syncer[S]) Forget() {
	r.adopted, r.wantCounts = nil, nil
	r.Watch.Reset()
	r.Table.Close()
}

// Liberal reports whether the node accepts out-of-window TCP packets as valid.
func Liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}
