package nft

import (
	"context"
	"fmt"
	"strings"
)

// Keep makes the kernel hold a program whose sets fill has filled, and knows the table's state
// from then on: for a table that is read and written as a whole. The sets come first, so that
// the rules never meet empty ones. again says, when the kernel is known to be watched, whether
// rules that look like the program's are to be loaded again all the same.
//
// After ErrAnew the table began anew and its sets are empty: the next Keep fills them.
func (w *Watch) Keep(ctx context.Context, p *Ruleset, again func(context.Context) (bool, error), fill func(context.Context) error) error {
	w.Reset()
	if err := w.Begin(ctx); err != nil {
		return err
	}
	anyway, err := again(ctx)
	if err != nil {
		return err
	}
	if _, err := w.table.Declare(ctx, p); err != nil {
		return err
	}
	if err := fill(ctx); err != nil {
		return err
	}
	loaded, err := w.table.Load(ctx, p, anyway)
	if err != nil {
		return err
	}
	if loaded == Recreated {
		return ErrRecreated
	}
	if loaded != Unchanged {
		if err := w.table.Prune(ctx, p); err != nil {
			return err
		}
	}
	return w.End(ctx, true)
}

// Damaged reports whether the table has other rules than n with that comment, which all rules
// of its program have: another program may have changed them when nobody watched.
func (t *Table) Damaged(ctx context.Context, comment string, n int) (bool, error) {
	var r Reader
	defer r.Close()
	ours, foreign := 0, 0
	err := r.Rules(ctx, Inet, t.name, "", func(rule Rule) error {
		if rule.Comment == comment {
			ours++
		} else {
			foreign++
		}
		return nil
	})
	return ours != n || foreign > 0, err
}

// Altered is Damaged for a program whose text has the comment once for each of its rules.
func (t *Table) Altered(ctx context.Context, p *Ruleset, comment string) (bool, error) {
	text, err := p.Text(t.name)
	if err != nil {
		return false, err
	}
	return t.Damaged(ctx, comment, strings.Count(text, fmt.Sprintf("comment %q", comment)))
}
