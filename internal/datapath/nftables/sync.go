package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.forget() // the next Sync reads the kernel
		return stats, fmt.Errorf("sync nftables: %w", err)
	}
	return stats, nil
}

// batch is how many frontends are rendered and written at a time: a few transactions, and
// a bounded amount of memory. Smaller changes are one transaction.
const batch = 4096

func (d *Datapath) sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats := datapath.Stats{Full: d.table == nil}
	if err := d.syncer.Start(ctx, stats.Full, d.readKernel); err != nil {
		return stats, err
	}
	changes := d.changes(want, stats.Full)
	j := syncJob{ctx: ctx, Datapath: d, stats: &stats, shrunk: map[affinityID]bool{}}
	if err := j.writeSettings(want); err != nil {
		return stats, err
	}
	if err := j.addressSets(changes); err != nil {
		return stats, err
	}
	for first := true; first || len(changes) > 0; first = false {
		n := min(len(changes), batch)
		if err := j.batch(changes[:n], len(changes) == n); err != nil {
			return stats, err
		}
		changes = changes[n:]
	}
	if err := j.removeUnused(); err != nil {
		return stats, err
	}
	if err := d.syncer.Switch(ctx, d.ruleset); err != nil {
		return stats, err
	}
	if err := j.rewriteChains(); err != nil {
		return stats, err
	}
	if err := j.writeLateSettings(); err != nil {
		return stats, err
	}
	if err := d.pruneAffinity(ctx, j.shrunk, stats.Full); err != nil {
		return stats, err
	}
	d.pruneAgain = j.shrunk
	if err := j.finish(); err != nil {
		return stats, err
	}
	d.table = want
	return stats, nil
}

// readKernel reads what the kernel holds.
func (d *Datapath) readKernel(ctx context.Context) error {
	d.ruleset.Data["DropInvalid"] = !nftset.Liberal()
	held, fresh, err := d.syncer.Begin(ctx, d.ruleset)
	if err != nil {
		return err
	}
	if d.state = held; fresh {
		clear(d.state.shared)
		for h, w := range d.state.chains {
			d.state.chains[h] = lbChain{verdict: w.verdict, stale: true}
		}
		d.state.staleUpdates = len(d.state.updateChains) > 0
	}
	return nil
}

// changes returns the frontends that may have to change: those that differ from the
// last table or, if the kernel was just read, all.
func (d *Datapath) changes(want *service.Table, full bool) []service.Change {
	if !full {
		return service.Diff(d.table, want)
	}
	_, n := want.Len()
	all := make([]service.Change, 0, n)
	wanted := make(map[service.Key]bool, n)
	for f := range want.Frontends() {
		wanted[f.Key()] = true
		all = append(all, service.Change{New: f})
	}
	for k := range d.state.frontends {
		if !wanted[k] {
			all = append(all, service.Change{Old: &service.Frontend{Addr: k.Addr, Proto: k.Proto}})
		}
	}
	return all
}

// A syncJob is one Sync in progress.
type syncJob struct {
	ctx context.Context // of the Sync
	*Datapath
	stats         *datapath.Stats
	shared        plan                // goes with the first batch and with the last
	shrunk        map[affinityID]bool // IDs that may have lost an endpoint
	affinityRules bool                // affinity-update chains were changed
	lateSettings  *nodeSettings       // the settings once our program runs; nil: written already
	// added and removed are the load-balancing chains that this Sync added or removed.
	added, removed []string
}

// finish ends the Sync. The maps of verdicts are written with the chains that they lead to.
func (j *syncJob) finish() error {
	const always = 2 // refused and dropped
	j.syncer.Expect(dispatchMap, always+len(j.state.chains))
	for set := range affinityMaps {
		j.syncer.Expect(set, len(j.state.updateChains))
	}
	return j.syncer.End(j.ctx, j.ruleset, nftset.Chains{Added: j.added, Removed: j.removed, Any: j.affinityRules})
}

// writeSettings writes the settings. NodePort prefixes that an older program still looks up
// stay until writeLateSettings: our program may not have them.
func (j *syncJob) writeSettings(want *service.Table) error {
	var p plan
	facts := nodeSettingsOf(want.Settings)
	if j.syncer.Pending() {
		late := facts
		j.lateSettings = &late
		facts.NodePorts = slices.Concat(facts.NodePorts, j.state.settings.NodePorts)
	}
	p.settings(&j.state.settings, &facts)
	j.state.settings = facts
	return j.commit(p.writes(), nil)
}

// addressSets plans the sets that all frontends share. Much that is added is written at once, in
// transactions of its own: it comes before the frontends in any case.
func (j *syncJob) addressSets(changes []service.Change) error {
	for _, one := range [...]struct {
		set     nftset.Set
		current nftset.Counts
		of      func(*service.Frontend, func(netip.Addr))
		key     func(netip.Addr) []byte
	}{
		{nftset.Hairpin, j.state.hairpins, nftset.LocalEndpointsOf, nftset.HairpinKey},
		{nftset.ClusterIPs, j.state.clusterIPs, nftset.ClusterIPsOf, netip.Addr.AsSlice},
	} {
		changed := one.current.Change(changes, one.of, j.stats.Full)
		for w := range one.current.All(one.set, changed, one.key) {
			if !w.Add {
				j.shared.late = append(j.shared.late, w)
				continue
			}
			if j.shared.early = append(j.shared.early, w); len(j.shared.early) < batch {
				continue
			}
			p := plan{early: j.shared.early}
			if err := j.commit(p.writes(), nil); err != nil {
				return err
			}
			j.shared.early = j.shared.early[:0]
		}
		one.current.Note(changed)
	}
	return nil
}

// writeLateSettings writes the settings that had to wait for our program.
func (j *syncJob) writeLateSettings() error {
	if j.lateSettings == nil {
		return nil
	}
	var p plan
	p.settings(&j.state.settings, j.lateSettings)
	j.state.settings = *j.lateSettings
	return j.commit(p.writes(), nil)
}

// batch renders some frontends and writes them. It is safe to record state before it is
// written: after an error all state is read again.
func (j *syncJob) batch(changes []service.Change, last bool) error {
	p := plan{early: j.shared.early}
	j.shared.early = nil
	for _, c := range changes {
		k := c.Key()
		was := j.state.at(k)
		is := j.state.render(was, c.New, j.count)
		if j.stats.Full && was.equal(is) {
			if was != is && is.name != "" {
				j.state.set(k, is) // equal, but shares memory with the table
			}
			continue
		}
		if from := was.extraOrZero(); from.affinityID|from.affinityIDExternal != 0 {
			j.shrunk[from.affinityID], j.shrunk[from.affinityIDExternal] = true, true
		}
		j.state.set(k, is)
		p.frontend(k, was, is)
		j.stats.Frontends++
	}
	if last {
		p.late = append(p.late, j.shared.late...)
	}
	return j.commitChains(p.writes())
}

// commitChains writes the missing chains, and then elements that lead to them.
func (j *syncJob) commitChains(ws []nft.Write) error {
	missing := j.missingChains()
	for len(missing) > chainsPerCommit {
		if err := j.commit(nil, j.addChains(missing[:chainsPerCommit])); err != nil {
			return err
		}
		missing = missing[chainsPerCommit:]
	}
	return j.commit(ws, j.addChains(missing))
}

// rewriteChains replaces the chains that another program wrote, if its rules led to them
// until now.
func (j *syncJob) rewriteChains() error {
	if !j.stats.Full {
		return nil
	}
	stale := j.state.staleUpdates
	if stale {
		clear(j.state.updateChains)
		j.state.staleUpdates = false
	}
	if err := j.commitChains(nil); err != nil || !stale {
		return err
	}
	return j.syncer.Commit(j.ctx, j.delChains(nil), nil)
}

// commit writes and counts.
func (j *syncJob) commit(ws []nft.Write, prepare func(*nftables.Conn) (bool, error)) error {
	for i := range ws {
		if ws[i].Add {
			j.stats.Added++
		}
		if ws[i].Del {
			j.stats.Deleted++
		}
	}
	if err := j.syncer.Commit(j.ctx, prepare, ws); err != nil {
		return fmt.Errorf("write elements: %w", err)
	}
	return nil
}

// chainsPerCommit bounds the transactions that add or remove chains: each chain is about
// ten messages, and the answers to all must fit into the socket's buffer.
const chainsPerCommit = 500

// missingChains returns the chains that are in use and do not exist. As long as another
// program runs, chains that it wrote are left to it.
func (j *syncJob) missingChains() (all []verdictID) {
	for h, n := range j.state.chainUses {
		if c := j.state.chains[h]; n > 0 && !c.current && !(c.stale && j.syncer.Pending()) {
			all = append(all, h)
		}
	}
	return all
}

// addChains returns a function that queues load-balancing and affinity-update chains.
func (j *syncJob) addChains(missing []verdictID) func(*nftables.Conn) (queued bool, err error) {
	return func(c *nftables.Conn) (queued bool, err error) {
		for _, h := range missing {
			w := j.state.chains[h]
			if w.current, w.stale = true, false; !h.isDedicated() {
				w.verdict = h
			}
			j.addShared(c, w.verdict.shared())
			if err := j.writer.addChain(j.syncer.Table, c, h, w.verdict); err != nil {
				return true, err
			}
			j.state.chains[h] = w
			j.added = append(j.added, h.chainName())
		}
		updates, err := j.state.addUpdateChains(j.syncer.Table, c)
		j.affinityRules = j.affinityRules || updates
		return updates || len(missing) > 0, err
	}
}

// addShared queues the shared chains of a verdict unless they exist.
func (j *syncJob) addShared(c *nftables.Conn, v verdictID) {
	if !j.state.shared[v] {
		j.state.shared[v] = true
		addShared(j.syncer.Table, c, v)
		j.added = append(j.added, v.sharedChains()...)
	}
}

// spareChains is how many unused chains may stay: during a rollout the number of a
// Service's endpoints changes back and forth.
const spareChains = 64

// removeUnused removes chains and affinity IDs that are no longer in use.
func (j *syncJob) removeUnused() error {
	var unused []verdictID
	own := 0 // chains that cannot be used again
	for h, n := range j.state.chainUses {
		if n <= 0 {
			delete(j.state.chainUses, h)
		}
	}
	for h := range j.state.chains {
		if j.state.chainUses[h] > 0 {
			continue
		}
		unused = append(unused, h)
		if h.isDedicated() || !j.state.chains[h].current {
			own++
		}
	}
	if len(unused)-own <= spareChains { // a chain for one frontend only cannot be used again
		unused = slices.DeleteFunc(unused, func(h verdictID) bool { return !h.isDedicated() && j.state.chains[h].current })
	}
	delete(j.shrunk, 0)
	j.state.releaseAffinityIDs(j.shrunk)
	for first := true; first || len(unused) > 0; first = false {
		n := min(len(unused), chainsPerCommit)
		if err := j.syncer.Commit(j.ctx, j.delChains(unused[:n]), nil); err != nil {
			return fmt.Errorf("remove unused chains: %w", err)
		}
		unused = unused[n:]
	}
	return nil
}

// delChains returns a function that queues the inverse of addChains.
func (j *syncJob) delChains(unused []verdictID) func(*nftables.Conn) (queued bool, err error) {
	return func(c *nftables.Conn) (queued bool, err error) {
		for _, h := range unused {
			if err := delChain(j.syncer.Table, c, h); err != nil {
				return true, err
			}
			delete(j.state.chains, h)
			if h.isDedicated() {
				j.state.dedicated--
			}
			j.removed = append(j.removed, h.chainName())
		}
		updates := false
		if (len(j.shrunk) > 0 || j.stats.Full) && !j.state.staleUpdates {
			updates, err = j.state.delUpdateChains(j.syncer.Table, c)
		}
		j.affinityRules = j.affinityRules || updates
		return updates || len(unused) > 0, err
	}
}
