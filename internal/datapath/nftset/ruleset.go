package nftset

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/nft"
)

// A Ruleset is the table of a mode over its life: what the kernel runs, what was read from
// it, and whether another program changed it. S is the state that a mode reads.
//
//	Adopt ─→ S                       another table or none: the rules of p are not reached yet
//	Begin ─→ S, writes of the mode ─→ Switch ─→ Watch.End      a Sync without a state
//	Watch.Begin, writes of the mode ─────────→ Watch.End       a Sync with a state
//	Check                                                      in between
//
// It belongs to one goroutine. Make one with NewRuleset.
type Ruleset[S any] struct {
	Table *nft.Table
	Watch *nft.Watch // over the table since it was read

	read    func(context.Context) (S, error)
	renames []Rename
	late    []Rename // the renamed sets to which packets add elements

	adopted *reading[S] // what Adopt has read, for the next Begin; may be nil
	pending bool        // the kernel does not run our program yet
	reload  bool        // the rules were changed: load the program again
	verify  time.Time   // when Check may read the elements again
}

// A reading is a state that was read. It is valid as long as the generation is the same.
type reading[S any] struct {
	state      S
	watch      *nft.Watch
	generation uint32
}

// NewRuleset returns a ruleset. read reads what the kernel holds; renames has the set names
// of former releases, late the renames of sets whose elements packets add.
func NewRuleset[S any](t *nft.Table, read func(context.Context) (S, error), renames, late []Rename) *Ruleset[S] {
	return &Ruleset[S]{Table: t, Watch: t.Watch(), read: read, renames: renames, late: late}
}

// Adopt reads what the kernel holds. It returns false if there is no table. With keep, the
// next Begin returns the same state, unless the table has changed in between.
func (r *Ruleset[S]) Adopt(ctx context.Context, keep bool) (state S, there bool, err error) {
	chains, err := r.Table.Chains(ctx)
	if err != nil || len(chains) == 0 {
		return state, false, err
	}
	got, err := r.readAll(ctx)
	if err != nil {
		return state, true, err
	}
	if keep {
		r.adopted = got
	}
	return got.state, true, nil
}

// readAll reads the state. The watch over the table begins before.
func (r *Ruleset[S]) readAll(ctx context.Context) (got *reading[S], err error) {
	got = &reading[S]{watch: r.Table.Watch()}
	if err := got.watch.Begin(ctx); err != nil {
		return nil, err
	}
	if got.generation, err = r.Table.Generation(ctx); err != nil {
		return nil, err
	}
	got.state, err = r.read(ctx)
	return got, err
}

// Begin returns what the kernel holds. If the kernel runs another program, or none, Begin
// also declares the sets of p, with the elements of a former release. Switch loads the rules
// later, when all elements that they need are there. fresh says that the chains which p
// keeps must be written.
func (r *Ruleset[S]) Begin(ctx context.Context, p *nft.Program) (state S, fresh bool, err error) {
	found, err := r.Table.Declare(ctx, p)
	if err != nil {
		return state, false, err
	}
	if r.pending = found != nft.Unchanged; r.pending {
		err = Migrate(ctx, r.Table, r.renames)
	} else if r.reload { // ours, but another program has changed it
		_, err = r.Table.Load(ctx, p, true)
	}
	if err != nil {
		return state, false, err
	}
	got, err := r.readOnce(ctx)
	if err != nil {
		return state, false, err
	}
	r.Watch = got.watch
	fresh, r.reload = r.pending || r.reload, false
	return got.state, fresh, nil
}

// readOnce returns what Adopt has read if nothing has changed since; else it reads.
func (r *Ruleset[S]) readOnce(ctx context.Context) (*reading[S], error) {
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
func (r *Ruleset[S]) Pending() bool { return r.pending }

// Switch makes the kernel run p instead of another program, or of none, and removes the
// leftovers of the other program. It does nothing if p runs.
func (r *Ruleset[S]) Switch(ctx context.Context, p *nft.Program) error {
	if !r.pending {
		return nil
	}
	switch did, err := r.Table.Load(ctx, p, true); {
	case err != nil:
		return err
	case did == nft.Anew: // the next Sync starts from nothing
		r.reload = true
		return nft.ErrAnew
	}
	if err := Migrate(ctx, r.Table, r.late); err != nil {
		return err
	}
	if err := r.Table.Prune(ctx, p); err != nil {
		return fmt.Errorf("remove leftovers of another program: %w", err)
	}
	r.pending = false
	return nil
}

// verifyShare bounds the time that Check spends reading: a node where another program
// changes nf_tables all the time must not spend more than a twentieth on it.
const verifyShare = 20

// Check reports what another program has changed since Watch.End. It compares our chains
// and rules by their handles. If any table of the node was changed, or always is set, same
// compares elements; its argument says whether there can be a change. After a drift the
// mode has to forget its state.
func (r *Ruleset[S]) Check(ctx context.Context, always bool, same func(changed bool) (bool, error)) (drift datapath.Drift, err error) {
	change, accept, err := r.Watch.Look(ctx)
	switch {
	case err != nil:
		return drift, err
	case change == nft.Rules:
		r.reload = true
		return datapath.Drift{Rules: true}, nil
	case change == nft.Nothing && !always, time.Now().Before(r.verify):
		return drift, nil
	}
	start := time.Now()
	ok, err := same(change != nft.Nothing)
	if err != nil {
		return drift, err
	}
	r.verify = time.Now().Add(verifyShare * time.Since(start))
	if !ok {
		return datapath.Drift{Elements: true}, nil
	}
	accept()
	return drift, nil
}

// Reload makes the next Begin load the program again.
func (r *Ruleset[S]) Reload() { r.reload = true }

// Forget makes the next Sync read the kernel.
func (r *Ruleset[S]) Forget() {
	r.adopted = nil
	r.Watch.Reset()
	r.Table.Close()
}

// Liberal reports whether the node accepts out-of-window TCP packets as valid.
func Liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}
