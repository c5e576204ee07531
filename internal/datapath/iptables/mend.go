package iptables

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A handleWatch knows the handles that our rules have in the kernel since our last write.
type handleWatch struct {
	reader     handleReader
	known      handles           // nil: not known, all rules must be read
	unverified map[chainRef]bool // another program wrote while we did: these may not be as we left them
	repair     *repair           // a Check found damage
	nextDeep   time.Time         // when Check may read the handles of all rules again
}

// A repair mends the damage that a Check found.
type repair struct {
	scripts map[bool]*script
	wrong   map[chainRef]bool
	now     handles // what the kernel held
	accept  func()  // takes the kernel's count of changes for known, if all was read
}

// reset forgets what it knows.
func (w *handleWatch) reset() { w.known, w.unverified, w.repair = nil, nil, nil }

// wrong are the chains that are not as the last write left them, or may be so.
func (w *handleWatch) wrong(now handles) map[chainRef]bool {
	all := w.known.differ(now)
	maps.Copy(all, w.unverified)
	return all
}

// manyChains is how many chains are read one by one rather than all at once.
const manyChains = 50

// chainsOfOne is how many chains are listed in the time in which one of them and its rules are asked for. (Beside
// 15,000 ports of two endpoints, to list all took 38 ms of CPU of each pass, and some hundred by themselves 5.)
const chainsOfOne = 20

// noteHandles notes the handles of the chains that scripts wrote.
func (d *Datapath) noteHandles(ctx context.Context, scripts map[bool]*script) error {
	if d.variant != NFT || d.handleWatch.known == nil {
		return nil // the next Check reads everything
	}
	where := chainRefsOf(scripts)
	if len(where) > max(manyChains, len(d.handleWatch.known)/chainsOfOne) {
		return d.noteAllHandles(ctx, scripts, d.handleWatch.known)
	}
	if err := d.handleWatch.reader.someHandles(ctx, d.handleWatch.known, where); err != nil {
		return err
	}
	settled, err := d.helper.watch.Settled(ctx)
	if !settled {
		d.unverified(where)
	}
	return err
}

// noteAfterFull notes all handles after everything was compared with what was read, and scripts
// wrote what differed: they are those that were read with the rules, but for the chains written.
func (d *Datapath) noteAfterFull(ctx context.Context, all map[bool]*familyState, scripts map[bool]*script) error {
	where := chainRefsOf(scripts)
	read := handles{}
	for _, h := range all {
		if h.handles == nil || len(where) > manyChains {
			return d.noteAllHandles(ctx, nil, nil)
		}
		maps.Copy(read, h.handles)
	}
	if err := d.handleWatch.reader.someHandles(ctx, read, where); err != nil {
		return err
	}
	settled, err := d.helper.watch.Settled(ctx)
	if settled {
		d.handleWatch.known, d.handleWatch.unverified = read, nil
	}
	return err
}

// noteAllHandles notes all handles, after scripts wrote; nil: after everything was compared. What scripts did not
// touch has the handles that are known. (To read the rules of 15,000 ports took a quarter of a second of each pass.)
func (d *Datapath) noteAllHandles(ctx context.Context, scripts map[bool]*script, known handles) error {
	if d.variant != NFT {
		return nil
	}
	where := chainRefsOf(scripts)
	now, err := d.handleWatch.reader.everyHandle(ctx, known, where)
	if err != nil {
		return err
	}
	settled, err := d.helper.watch.Settled(ctx)
	switch {
	case err != nil:
		return err
	case settled:
		d.handleWatch.known = now
		maps.DeleteFunc(d.handleWatch.unverified, func(s chainRef, _ bool) bool { return known == nil || where[s] })
	case scripts == nil:
		d.handleWatch.known = nil
	default:
		d.unverified(where)
	}
	return nil
}

// unverified notes chains of which we do not know whether they are as we wrote them.
func (d *Datapath) unverified(where map[chainRef]bool) {
	if d.handleWatch.unverified == nil {
		d.handleWatch.unverified = map[chainRef]bool{}
	}
	maps.Copy(d.handleWatch.unverified, where)
	if len(d.handleWatch.unverified) > manyChains {
		d.handleWatch.reset() // writing so many anew would cost more than reading everything
	}
}

// chainRefsOf are the chains that scripts write.
func chainRefsOf(scripts map[bool]*script) map[chainRef]bool {
	all := map[chainRef]bool{}
	for is4, s := range scripts {
		for _, part := range s.sections() {
			for name := range part.touched {
				all[chainRef{is4: is4, in: chain{part.table, name}}] = true
			}
		}
	}
	return all
}

// chainsIntact looks at the rules where the handles are others than we know. First it takes
// a quick look at all chains. That another program wrote elsewhere is accepted only when all
// handles were read, which is done less often: until then each Check looks again.
func (d *Datapath) chainsIntact(ctx context.Context, accept func()) (bool, error) {
	now, err := d.handleWatch.reader.everyHandle(ctx, d.handleWatch.known, nil)
	if err != nil {
		return true, err
	}
	wrong, start := d.handleWatch.wrong(now), time.Now()
	deep := len(wrong) > manyChains || len(wrong) == 0 && !start.Before(d.handleWatch.nextDeep)
	if deep {
		if now, err = d.handleWatch.reader.everyHandle(ctx, nil, nil); err != nil {
			return true, err
		}
		d.handleWatch.nextDeep = start.Add(verifyShare * time.Since(start))
		wrong = d.handleWatch.wrong(now)
	} else {
		accept = func() {}
	}
	scripts, err := d.repairs(ctx, wrong, now)
	if err != nil {
		return true, err
	}
	if !changeNothing(scripts) {
		d.handleWatch.repair = &repair{scripts, wrong, now, accept}
		return false, nil
	}
	d.handleWatch.reset()
	d.handleWatch.known = now
	accept()
	return true, nil
}

// repairs plans the writes that mend the rules where they are wrong.
func (d *Datapath) repairs(ctx context.Context, wrong map[chainRef]bool, now handles) (map[bool]*script, error) {
	scripts, where := map[bool]*script{}, map[bool]bool{}
	for s := range wrong {
		where[s.is4] = true
	}
	for _, is4 := range families() {
		if scripts[is4] = newScript(); !where[is4] {
			continue
		}
		l, entries := d.family(d.groups, is4, newCounts())
		h := newFamilyState()
		h.hooks = slices.Clone(l.hooks)
		for c := range l.chains {
			h.chains[c] = slices.Concat(entries[c], l.chains[c], l.tails[c])
		}
		if err := d.readChanged(ctx, h, is4, wrong, now); err != nil {
			return nil, err
		}
		scripts[is4].changeAll(h, l, entries)
	}
	return scripts, nil
}

// unread stands for the rules of a chain that was not read: it is written anew.
const unread = "-m comment --comment unread"

// readChanged corrects what we believe that a family holds, at the chains that changed.
func (d *Datapath) readChanged(ctx context.Context, h *familyState, is4 bool, wrong map[chainRef]bool, now handles) error {
	read := map[chain]bool{}
	for s := range wrong {
		if s.is4 != is4 {
			continue
		}
		_, there := now[chainRef{is4: is4, in: s.in}]
		switch hooks := !isOurs(s.in); {
		case hooks:
			h.hooks = slices.DeleteFunc(h.hooks, func(o hook) bool { return o.in == s.in })
			read[s.in] = true
		case !there:
			delete(h.chains, s.in)
		case len(wrong) <= manyChains:
			read[s.in] = true
			delete(h.chains, s.in)
		default:
			h.chains[s.in] = []string{unread}
		}
	}
	for _, c := range sorted(read) {
		if err := xtables.SaveChain(ctx, d.variant, is4, c.table, c.name, h.add); err != nil {
			return err
		}
		if isOurs(c) && h.chains[c] == nil {
			h.chains[c] = []string{}
		}
	}
	return nil
}

// mend mends what Check found wrong, by the last table.
func (d *Datapath) mend(ctx context.Context) (stats datapath.Stats, err error) {
	r := d.handleWatch.repair
	if d.handleWatch.repair = nil; r == nil {
		return stats, nil
	}
	r.accept() // the next Check sees what came after that one
	if err := d.helper.watch.Begin(ctx); err != nil {
		return stats, err
	}
	if err := d.apply(ctx, elemChange{}, r.scripts, &stats); err != nil {
		return stats, err
	}
	if err := d.helper.watch.End(ctx, false); err != nil {
		return stats, err
	}
	stats.Full = true
	// Where we did not write, the rules are right and their handles are others.
	for s := range r.wrong {
		delete(d.handleWatch.known, s)
		if is, ok := r.now[s]; ok {
			d.handleWatch.known[s] = is
		}
	}
	return stats, d.noteHandles(ctx, r.scripts)
}

// changeNothing reports whether scripts change nothing.
func changeNothing(scripts map[bool]*script) bool {
	for _, s := range scripts {
		if s.String() != "" {
			return false
		}
	}
	return true
}
