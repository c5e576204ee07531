package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	var stats datapath.Stats
	var err error
	if d.table == nil || !d.table.Settings.Equal(want.Settings) {
		stats, err = d.syncFull(ctx, want)
	} else if stats, err = d.mend(ctx); err == nil {
		err = d.syncChanges(ctx, want, &stats)
	}
	if err != nil {
		d.forget() // the next Sync reads the kernel
		return stats, fmt.Errorf("sync iptables: %w", err)
	}
	return stats, nil
}

// syncFull compares everything with the kernel and writes the difference.
func (d *Datapath) syncFull(ctx context.Context, want *service.Table) (stats datapath.Stats, err error) {
	stats.Full, d.repair = true, nil
	kernel, err := d.start(ctx)
	if err != nil {
		return stats, err
	}
	if err := d.chooseVariant(ctx, kernel); err != nil {
		return stats, err
	}
	if err := d.helper.load(ctx, d.reloadHelper); err != nil {
		return stats, err
	}
	states, err := kernel.All(ctx, d.variant)
	if err != nil {
		return stats, err
	}
	elems, err := d.helper.read(ctx)
	if err != nil {
		return stats, err
	}
	if applied, err := tableOf(states); err == nil {
		stats.Frontends = len(service.Diff(applied, want))
	} else {
		_, stats.Frontends = want.Len() // the kernel's rules are not a table
	}
	d.adoptNumbers(want.Settings, states, elems)
	groups := map[group][]*service.Frontend{}
	for _, f := range want.Sorted() {
		groups[groupOf(f)] = append(groups[groupOf(f)], f)
	}
	scripts, wanted := d.planAll(groups, states)
	change := planElems(elems, keys(wanted))
	settings, err := d.helper.settings(ctx, want.Settings)
	if err != nil {
		return stats, err
	}
	change.before, change.constantRules = append(settings, change.before...), true
	for name := range updateChains(wanted) { // their rules are not read, so Sync writes them again
		if !slices.Contains(change.newChains, name) {
			change.newChains = append(change.newChains, name)
		}
	}
	if err := d.apply(ctx, change, scripts, &stats); err != nil {
		return stats, err
	}
	if err := d.readBack(ctx, groups, scripts); err != nil {
		return stats, err
	}
	stats.Differs = d.mismatch.String()
	d.helper.elems, d.reloadHelper = wanted, false
	if err := d.recordSynced(ctx, want, groups, true); err != nil {
		return stats, err
	}
	return stats, d.helper.watch.End(ctx, true)
}

// start returns the kernel's rules before a full Sync. It uses the rules that Adopt read, if no other program has
// written since. The kernel does not count changes of iptables-legacy's rules; a later Check reads and compares those.
func (d *Datapath) start(ctx context.Context) (*read.Snapshot, error) {
	s := d.adopted
	if d.adopted = nil; s != nil {
		settled, err := d.helper.watch.Settled(ctx)
		if err != nil || settled {
			return s, err
		}
	}
	d.helper.watch.Reset()
	return read.NewSnapshot(&d.reader), d.helper.watch.Begin(ctx)
}

// mend writes the changes that the last Check found necessary.
func (d *Datapath) mend(ctx context.Context) (stats datapath.Stats, err error) {
	scripts := d.repair
	if d.repair = nil; scripts == nil {
		return stats, nil
	}
	stats.Full, stats.Differs = true, d.mismatch.String()
	return stats, d.apply(ctx, elemChange{}, scripts, &stats)
}

// syncChanges writes the difference between the last table and want.
func (d *Datapath) syncChanges(ctx context.Context, want *service.Table, stats *datapath.Stats) error {
	changed := service.Diff(d.table, want)
	if len(changed) == 0 {
		d.table = want
		return nil
	}
	if err := d.helper.watch.Begin(ctx); err != nil {
		return err
	}
	stats.Frontends += len(changed)
	groups := changedGroups(want, changed)
	scripts, counts := d.planChange(groups)
	old, next := map[elem]bool{}, map[elem]bool{}
	for e, n := range counts {
		if d.helper.elems[e] > 0 {
			old[e] = true
		}
		if d.helper.elems[e]+n > 0 {
			next[e] = true
		}
	}
	change := d.keepSharedChains(planElems(old, next), counts)
	if err := d.apply(ctx, change, scripts, stats); err != nil {
		return err
	}
	addCounts(d.helper.elems, counts)
	if err := d.recordSynced(ctx, want, groups, false); err != nil {
		return err
	}
	return d.helper.watch.End(ctx, len(change.newChains)+len(change.oldChains) > 0)
}

// keepSharedChains removes from a change the helper's chains that unchanged elements use too.
func (d *Datapath) keepSharedChains(change elemChange, counts map[elem]int) elemChange {
	if len(change.newChains)+len(change.oldChains) == 0 {
		return change
	}
	before := updateChains(d.helper.elems)
	next := maps.Clone(d.helper.elems)
	addCounts(next, counts)
	after := updateChains(next)
	change.newChains = slices.DeleteFunc(change.newChains, func(name string) bool { return before[name] })
	change.oldChains = slices.DeleteFunc(change.oldChains, func(name string) bool { return after[name] })
	return change
}

// apply writes: first new elements of the helper, then the rules, then it deletes old elements.
func (d *Datapath) apply(ctx context.Context, change elemChange, scripts map[bool]*script, stats *datapath.Stats) error {
	if err := d.helper.add(ctx, change); err != nil {
		return err
	}
	for _, is4 := range read.Families() {
		if scripts[is4] == nil {
			continue
		}
		if err := d.write(ctx, is4, scripts[is4]); err != nil {
			return err
		}
		stats.Deleted += len(scripts[is4].unhooks)
		for _, part := range scripts[is4].sections() {
			stats.Added += part.added
			stats.Deleted += part.deleted
		}
	}
	for _, w := range slices.Concat(change.before, change.after) {
		if w.Add {
			stats.Added++
		} else {
			stats.Deleted++
		}
	}
	return d.helper.remove(ctx, change)
}

// write makes one family's changes. It deletes old hooks when the new hooks are in place. A packet that passes both
// passes our chains twice, which changes nothing.
func (d *Datapath) write(ctx context.Context, is4 bool, s *script) error {
	if text := s.String(); text != "" {
		restore := func() error { return d.restore(ctx, d.variant, is4, text) }
		var err error
		if d.variant == NFT { // the kernel counts each COMMIT as one change
			err = d.helper.watch.RunAsOurs(ctx, uint32(strings.Count(text, "COMMIT\n")), restore)
		} else {
			err = restore()
		}
		if err != nil {
			return err
		}
	}
	return d.unhook(ctx, is4, s.unhooks)
}

// restore runs iptables-restore on text.
func (d *Datapath) restore(ctx context.Context, v Variant, is4 bool, text string) error {
	if d.failWrite != nil {
		if err := d.failWrite(); err != nil {
			return err
		}
	}
	return xtables.Restore(ctx, v, is4, text)
}

// unhook deletes hooks by their handles. iptables-nft would look for the text, and does not find a rule that has an
// older revision of a match than it writes now. It writes an older revision if the kernel has no memory to answer
// which revisions exist.
func (d *Datapath) unhook(ctx context.Context, is4 bool, hooks []hook) error {
	var text strings.Builder
	for _, h := range hooks {
		fmt.Fprintf(&text, "delete rule %v %s %s handle %d\n", read.Family(is4), h.In.Table, h.In.Name, h.Handle)
	}
	if text.Len() == 0 {
		return nil
	}
	return d.helper.table.Run(ctx, text.String())
}

// recordSynced records that the kernel holds want. The changed groups are given; all means that they are all groups. It
// deletes the clients of lists of endpoints that no longer exist.
func (d *Datapath) recordSynced(ctx context.Context, want *service.Table, groups map[group][]*service.Frontend, all bool) error {
	d.table = want
	if all {
		d.groups = groups
	}
	for g, fronts := range groups {
		if d.groups[g] = fronts; len(fronts) == 0 {
			delete(d.groups, g)
		}
	}
	if used, released := d.renderer.releaseNumbers(d.helper.elems); all || released {
		return d.helper.prune(ctx, used)
	}
	return nil
}
