package nft

import (
	"context"
	"maps"
	"slices"
)

// A Watch finds out whether another program has changed a table.
//
// The kernel counts the changes of all tables of a network namespace (the generation).
// As long as the ledger says that all generations since the last one are of this process,
// and not of another Table of the same name, nothing has changed; this check costs one
// message. Else the Watch compares our chains and rules by a hash of their expressions. If they
// are equal, elements or other tables have changed.
//
//	Begin, read the table, Commit…, End(true) · Look · Begin, Commit…, End(false) · Look …
type Watch struct {
	table      *Table
	generation uint32
	rules      map[string][]uint64 // the hash of each rule of each chain
	known      bool
	sealed     string // the seal that the kernel has; empty: unknown
}

// Watch returns a watch over the table, not yet begun.
func (t *Table) Watch() *Watch { return &Watch{table: t} }

// A Change is what a Look found.
type Change uint8

// The findings. Elements means that elements may have changed, or that another table changed.
const (
	Nothing Change = iota
	Elements
	Rules
)

// Begin records the generation if the Watch has none. It is called before the table is
// read, so that the next Look sees a change during the read.
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

// RunAsOurs calls run, which starts a program such as iptables-nft-restore that makes n
// transactions for us; they are recorded as our own. It returns run's error.
func (w *Watch) RunAsOurs(ctx context.Context, n uint32, run func() error) error {
	return w.table.count(ctx, n, run)
}

// End is called after our own commits; rules says that they changed chains or rules.
func (w *Watch) End(ctx context.Context, rules bool) (err error) {
	if rules {
		w.rules, err = w.table.rules(ctx)
	}
	return err
}

// manyChains is up to how many chains are read one by one rather than all at once.
const manyChains = 50

// EndChains is End for commits that changed a few chains only: it reads the rules of the
// added chains and forgets the removed chains. It does not read all rules.
func (w *Watch) EndChains(ctx context.Context, added, gone []string) error {
	if w.rules == nil || len(added) > manyChains {
		return w.End(ctx, true)
	}
	for _, name := range gone {
		delete(w.rules, name)
	}
	for _, name := range added {
		rules := map[string][]uint64{name: nil}
		if err := w.table.hashes(ctx, rules, name); err != nil {
			return err
		}
		w.rules[name] = rules[name]
	}
	return w.End(ctx, false)
}

// Reset forgets everything: the next Begin starts again.
func (w *Watch) Reset() { *w = Watch{table: w.table} }

// Look reports what changed since End. After Elements, the caller reads the table and, if
// it is correct, calls accept: the present state is the known one from then on.
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

// Settled reports whether only this process has written since the known generation: that
// of the first Begin, or of the last Look that found nothing or was accepted.
func (w *Watch) Settled(ctx context.Context) (bool, error) {
	_, ours, err := w.advance(ctx)
	return ours, err
}

// advance reads the generation, and takes it for known if this process made all generations
// up to it. It waits for transactions in progress.
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

// rules returns the chains of our table and the hash of each of their rules; nil if there
// is no table.
func (t *Table) rules(ctx context.Context) (map[string][]uint64, error) {
	chains, err := t.list(ctx)
	if err != nil || chains == nil {
		return nil, err
	}
	all := make(map[string][]uint64, len(chains))
	for _, c := range chains {
		all[c.Name] = nil
	}
	return all, t.hashes(ctx, all, "")
}
