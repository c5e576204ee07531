package nft

import (
	"context"
	"fmt"
	"strings"
)

// Keep makes the kernel run rs with sets that fill has filled, for a table that is read and written as a whole. It also
// makes the Watch start again. The sets come before the rules, so that the rules never see empty sets.
//
// again is called when the Watch has begun. It reports whether the rules must be loaded even if they look like those of
// rs. After ErrRecreated the sets are empty, and the next Keep fills them.
func (w *Watch) Keep(ctx context.Context, rs *Ruleset, again func(context.Context) (bool, error), fill func(context.Context) error) error {
	w.Reset()
	if err := w.Begin(ctx); err != nil {
		return err
	}
	reload, err := again(ctx)
	if err != nil {
		return err
	}
	if _, err := w.table.Declare(ctx, rs); err != nil {
		return err
	}
	if err := fill(ctx); err != nil {
		return err
	}
	loaded, err := w.table.Load(ctx, rs, reload)
	if err != nil {
		return err
	}
	if loaded == Recreated {
		return ErrRecreated
	}
	if loaded != Unchanged {
		if err := w.table.Prune(ctx, rs); err != nil {
			return err
		}
	}
	return w.End(ctx, true)
}

// Damaged reports whether the table has other rules than n rules with the comment. All rules of the caller's ruleset
// have this comment. It finds changes that another program made while no process watched.
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

// Altered is Damaged for a ruleset that has the comment exactly once for each rule.
func (t *Table) Altered(ctx context.Context, rs *Ruleset, comment string) (bool, error) {
	text, err := rs.Text(t.name)
	if err != nil {
		return false, err
	}
	return t.Damaged(ctx, comment, strings.Count(text, fmt.Sprintf("comment %q", comment)))
}
