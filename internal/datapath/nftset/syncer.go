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

// A State is the state of the kernel in the words of a mode.
type State interface {
	// Explain returns the kernel objects that make a frontend work, or none if there is no such frontend.
	Explain(k service.Key) ([]datapath.Object, error)
}

// A Syncer carries the table of a mode through its life: from one version to the next, from one Sync to the next, and
// through changes by other programs. S is the state that the mode reads from the kernel.
//
//	Adopt ─→ S
//	Start, Begin ─→ S, Commit… ─→ Switch ─→ Commit… ─→ End     a Sync that reads the kernel
//	Start, Commit… ──────────────────────────────────→ End     a Sync that knows the state
//	Check                                                      between two Syncs
//
// After an error the mode calls Forget, so that the next Sync reads the kernel. Only one goroutine may use a Syncer.
// NewSyncer returns one.
type Syncer[S State] struct {
	mode  string
	Table *nft.Table
	Watch *nft.Watch // over the table since it was read

	read   func(context.Context) (S, error)
	reader *Reader // of the last read

	adopted    *reading[S]    // the result of Adopt for the next Begin; may be nil
	pending    bool           // the kernel does not run our ruleset yet
	unpruned   bool           // the ruleset was loaded, and no Sync has ended since
	reload     bool           // another program changed the table: load the ruleset again
	wantCounts map[string]int // the number of elements in each set that a Sync must leave; nil: the Sync knows the state
	verifyAt   time.Time      // Check reads elements only after this time
}

// A reading is a state of the kernel. It is valid while the kernel has the same generation.
type reading[S State] struct {
	state      S
	watch      *nft.Watch
	generation uint32
	counts     map[string]int
}

// NewSyncer returns the Syncer of a mode. read reads the state of the kernel with Reader.
func NewSyncer[S State](mode string, t *nft.Table, read func(context.Context) (S, error)) *Syncer[S] {
	return &Syncer[S]{mode: mode, Table: t, Watch: t.Watch(), read: read}
}

// Reader returns a reader of the table.
func (r *Syncer[S]) Reader(ctx context.Context) *Reader {
	r.reader = newReader(ctx, r.Table)
	return r.reader
}

// Adopt reads the state of the kernel, and lets translate make a Table of it. If keep is set, the next Begin returns
// the same state, unless the kernel has changed in between.
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

// Explain reads the state of the kernel, and returns the kernel objects that make a frontend work.
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

// Start begins a Sync. If full is set, readKernel reads the state with Begin.
func (r *Syncer[S]) Start(ctx context.Context, full bool, readKernel func(context.Context) error) error {
	if full {
		if err := readKernel(ctx); err != nil {
			return err
		}
	}
	return r.Watch.Begin(ctx)
}

// readAll reads the state. It starts a Watch before it reads.
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

// Begin returns the state of the kernel. fresh says that the mode must write its dynamic chains again.
//
// If the kernel runs another ruleset or none, Begin also declares the sets of rs. Switch loads the rules later, when
// all elements that they need are in the kernel. If the kernel runs rs but its rules differ from those of the last End,
// Begin loads rs again.
func (r *Syncer[S]) Begin(ctx context.Context, rs *nft.Ruleset) (state S, fresh bool, err error) {
	if err := r.begin(ctx, rs); err != nil {
		return state, false, r.describeError(ctx, rs, err)
	}
	got, err := r.readOnce(ctx)
	if err != nil {
		return state, false, err
	}
	r.Watch, r.wantCounts, r.reload = got.watch, maps.Clone(got.counts), false
	return got.state, r.unpruned, nil
}

func (r *Syncer[S]) begin(ctx context.Context, rs *nft.Ruleset) error {
	found, err := r.Table.Declare(ctx, rs)
	if err != nil {
		return err
	}
	if r.pending = found != nft.Unchanged; r.pending {
		r.unpruned = true
		return nil
	}
	sealed := false
	if !r.reload {
		if sealed, err = r.Table.Sealed(ctx, rs); err != nil {
			return err
		}
	}
	if r.unpruned = !sealed; r.unpruned {
		_, err = r.Table.Load(ctx, rs, true) // Recreated needs no action: Begin reads the table next
	}
	return err
}

// readOnce returns the result of Adopt if nothing has changed since. Otherwise it reads.
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

// Pending reports whether the kernel does not run our ruleset yet. Until Switch, the rules of another version may look
// elements of the table up.
func (r *Syncer[S]) Pending() bool { return r.pending }

// Switch makes the kernel run rs. It does nothing if the kernel runs rs already. Dynamic chains stay as they are: the
// mode writes them again before End.
func (r *Syncer[S]) Switch(ctx context.Context, rs *nft.Ruleset) error {
	if !r.pending {
		return nil
	}
	did, err := r.Table.Load(ctx, rs, true)
	if err == nil && did == nft.Recreated {
		r.reload, err = true, nft.ErrRecreated
	}
	if err != nil {
		return r.describeError(ctx, rs, err)
	}
	r.pending = false
	return nil
}

// describeError adds to an error which rules the kernel runs.
func (r *Syncer[S]) describeError(ctx context.Context, rs *nft.Ruleset, err error) error {
	this, another, failed := r.Table.Runs(ctx, rs)
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

// Commit calls Commit of the Table, and counts the elements for End.
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

// count adds n to the number of elements that a set must have. It ignores sets that the mode did not read.
func (r *Syncer[S]) count(set string, n int) {
	if _, counted := r.wantCounts[set]; counted {
		r.wantCounts[set] += n
	}
}

// Expect sets the number of elements that a set must have at End, for sets that the mode does not write by Commit.
func (r *Syncer[S]) Expect(set string, n int) {
	if r.wantCounts != nil {
		r.wantCounts[set] = n
	}
}

// Chains has the names of the dynamic chains that a Sync added and removed. Any says that it may have changed others.
type Chains struct {
	Added, Removed []string
	Any            bool
}

// End ends a Sync. It stores hashes of the rules, in memory for Check and in the kernel for the next process. A Sync
// that read the kernel also removes the remains of other versions. It fails if a set has another number of elements
// than the mode read and wrote.
func (r *Syncer[S]) End(ctx context.Context, rs *nft.Ruleset, chains Chains) (err error) {
	full := r.wantCounts != nil
	if r.unpruned {
		if err := r.Table.Prune(ctx, rs); err != nil {
			return fmt.Errorf("remove chains and sets of another version: %w", err)
		}
	}
	if full {
		if err := r.verifyCounts(ctx); err != nil {
			return err
		}
	}
	if full || chains.Any {
		err = r.Watch.End(ctx, true)
	} else {
		err = r.Watch.EndChains(ctx, chains.Added, chains.Removed)
	}
	if err == nil && (full || chains.Any || len(chains.Added)+len(chains.Removed) > 0) {
		err = r.Watch.Seal(ctx, rs)
	}
	if err == nil {
		r.wantCounts, r.unpruned = nil, false
	}
	return err
}

// verifyCounts compares the number of elements in the kernel with the number that the mode read and wrote.
func (r *Syncer[S]) verifyCounts(ctx context.Context) error {
	got, err := r.Table.Counts(ctx)
	if err != nil {
		return err
	}
	for set, want := range r.wantCounts {
		if n, counted := got[set]; counted && n != want {
			r.reload = true
			return fmt.Errorf("set %s has %d elements, but must have the %d written ones"+
				" [another program changes table %s; the next pass reads and repairs it]", set, n, want, r.Table.Name())
		}
	}
	return nil
}

// verifyShare limits the time that Check spends reading to one part in verifyShare, for nodes on which another program
// changes nf_tables all the time.
const verifyShare = 20

// Checks has the parts of a Check that depend on the mode.
type Checks struct {
	Synced bool                             // the mode knows the state; false: Check does nothing, the next Sync reads the kernel
	Routed func() (bool, error)             // whether the routes that lead to the rules exist; nil: the mode needs no routes
	Same   func(changed bool) (bool, error) // compares elements; changed: a table of the node has changed
	Always bool                             // call Same also if no table of the node has changed
	Forget func()                           // drops the mode's state, so that the next Sync reads the kernel
}

// Check reports changes by other programs since the last Sync. It compares chains and rules by their hashes. If
// any table of the node has changed, it also compares elements. After a drift it calls Forget.
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

// compareTable compares the table with the state after the last Sync.
func (r *Syncer[S]) compareTable(ctx context.Context, c Checks) (drift datapath.Drift, err error) {
	change, accept, err := r.Watch.Look(ctx)
	switch {
	case err != nil:
		return drift, err
	case change == nft.Rules:
		r.reload = true
		return datapath.Drift{Rules: true}, nil
	case change == nft.Nothing && !c.Always, time.Now().Before(r.verifyAt):
		return drift, nil
	}
	start := time.Now()
	ok, err := c.Same(change != nft.Nothing)
	if err != nil {
		return drift, err
	}
	r.verifyAt = time.Now().Add(verifyShare * time.Since(start))
	if !ok {
		r.reload = true // the ruleset has some elements too
		return datapath.Drift{Elements: true}, nil
	}
	accept()
	return drift, nil
}

// Reload makes the next Begin load the ruleset again.
func (r *Syncer[S]) Reload() { r.reload = true }

// Forget makes the next Sync read the kernel.
func (r *Syncer[S]) Forget() {
	r.adopted, r.wantCounts = nil, nil
	r.Watch.Reset()
	r.Table.Close()
}

// Liberal reports whether conntrack on this node accepts TCP packets outside of the window as valid.
func Liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}
