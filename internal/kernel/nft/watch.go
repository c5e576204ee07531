package nft

import (
	"context"
	"maps"
	"slices"
)

// A Watch finds out whether another program has changed a table.
//
// The kernel counts the changes of all tables of a network namespace: the generation. While the ledger shows that this
// process made all generations since the last check, and no other Table of the same name took part, nothing has
// changed. This check costs one message. Otherwise the Watch compares the hashes of our rules. If they are equal,
// elements or other tables have changed.
//
//	Begin, read the table, Commit…, End(true) · Look · Begin, Commit…, End(false) · Look …
type Watch struct {
	table      *Table
	generation uint32              // the last generation that is known to be ours
	rules      map[string][]uint64 // the hashes of the rules of each chain
	known      bool                // generation is set
	sealed     string              // the seal in the kernel; "": unknown
}

// Watch returns a watch over the table. Begin starts it.
func (t *Table) Watch() *Watch { return &Watch{table: t} }

// A Change is the result of a Look.
type Change uint8

const (
	Nothing  Change = iota
	Elements        // elements may have changed, or another table has
	Rules           // rules or chains of the table have changed
)

// Begin records the generation if the Watch has none. The caller calls it before it reads the table, so that the next
// Look finds a change during the read.
func (w *Watch) Begin(ctx context.Context) error {
	if w.known {
		return nil
	}
	gen, err := w.table.Generation(ctx)
	if err != nil {
		return err
	}
	w.generation, w.known = gen, true
	return nil
}

// RunAsOurs calls run, which starts a program such as iptables-nft-restore that makes n transactions for us. The ledger
// records them as our own. RunAsOurs returns the error of run.
func (w *Watch) RunAsOurs(ctx context.Context, n uint32, run func() error) error {
	return w.table.runAsOurs(ctx, n, run)
}

// End is called after our own commits. rules says that they changed chains or rules.
func (w *Watch) End(ctx context.Context, rules bool) (err error) {
	if rules {
		w.rules, err = w.table.rules(ctx)
	}
	return err
}

// manyChains is the largest number of chains that EndChains reads one by one. More chains are read all at once.
const manyChains = 50

// EndChains is End for commits that changed few chains. It reads the rules of the added chains only, and forgets the
// removed chains.
func (w *Watch) EndChains(ctx context.Context, added, removed []string) error {
	if w.rules == nil || len(added) > manyChains {
		return w.End(ctx, true)
	}
	for _, name := range removed {
		delete(w.rules, name)
	}
	for _, name := range added {
		rules := map[string][]uint64{name: nil}
		if err := w.table.addHashes(ctx, rules, name); err != nil {
			return err
		}
		w.rules[name] = rules[name]
	}
	return w.End(ctx, false)
}

// Reset forgets everything: the next Begin starts again.
func (w *Watch) Reset() { *w = Watch{table: w.table} }

// Look reports the kind of change since End. After Elements the caller reads the table. If it is correct, the caller
// calls accept, and the present state counts as known.
func (w *Watch) Look(ctx context.Context) (c Change, accept func(), err error) {
	gen, ours, err := w.advance(ctx)
	if err != nil || ours {
		return Nothing, func() {}, err
	}
	rules, err := w.table.rules(ctx)
	if err != nil {
		return Nothing, func() {}, err
	}
	if !maps.EqualFunc(rules, w.rules, slices.Equal) {
		return Rules, func() {}, nil
	}
	return Elements, func() { w.generation = gen }, nil
}

// Settled reports whether only this process has written since the known generation.
func (w *Watch) Settled(ctx context.Context) (bool, error) {
	_, ours, err := w.advance(ctx)
	return ours, err
}

// advance reads the generation. If this process made all generations up to it, the generation becomes the known one.
// advance waits for transactions in progress.
func (w *Watch) advance(ctx context.Context) (gen uint32, ours bool, err error) {
	if gen, err = w.table.Generation(ctx); err != nil || !w.known {
		return gen, false, err
	}
	l := w.table.ledger
	if ours = l.ours(w.generation, gen, w.table.origin); !ours {
		l.wait(ctx, true)
		ours = l.ours(w.generation, gen, w.table.origin)
	}
	if ours {
		w.generation = gen
	}
	return gen, ours, nil
}
