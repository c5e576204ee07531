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
		d.forget()
		return stats, fmt.Errorf("sync nftables: %w", err)
	}
	return stats, nil
}

// frontendsPerPlan is the largest number of frontends that one plan has. It bounds the memory for a plan, which is a
// few transactions. Smaller changes are one transaction.
const frontendsPerPlan = 4096

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
		n := min(len(changes), frontendsPerPlan)
		if err := j.writeFrontends(changes[:n], len(changes) == n); err != nil {
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

// readKernel reads the state of the kernel.
func (d *Datapath) readKernel(ctx context.Context) error {
	d.ruleset.Data["DropInvalid"] = !nftset.Liberal()
	held, fresh, err := d.syncer.Begin(ctx, d.ruleset)
	if err != nil {
		return err
	}
	d.adopted = nil
	if d.state = held; fresh {
		clear(d.state.shared)
		for v, chain := range d.state.chains {
			d.state.chains[v] = lbChain{verdict: chain.verdict, stale: true}
		}
		d.state.staleUpdates = len(d.state.updateChains) > 0
	}
	return nil
}

// changes returns the frontends that may have to change: those that differ from the last table. If full is set, it
// returns all frontends of the table, and those in the kernel that the table lacks.
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
	stats          *datapath.Stats
	addresses      plan                // the sets of addresses: early with the first plan, late with the last one
	shrunk         map[affinityID]bool // the IDs that may have lost an endpoint
	affinityRules  bool                // the Sync changed affinity-update chains
	lateSettings   *nodeSettings       // the settings to write after Switch; nil: they are written
	added, removed []string            // the load-balancing chains that the Sync added and removed
}

// finish ends the Sync. It tells the syncer the sizes of the maps that are written together with chains.
func (j *syncJob) finish() error {
	const constant = 2 // refused and dropped
	j.syncer.Expect(dispatchMap, constant+len(j.state.chains))
	for set := range affinityMaps {
		j.syncer.Expect(set, len(j.state.updateChains))
	}
	return j.syncer.End(j.ctx, j.ruleset, nftset.Chains{Added: j.added, Removed: j.removed, Any: j.affinityRules})
}

// writeSettings writes the settings. While the kernel runs another version, NodePort prefixes only grow: the other
// version may look them up. writeLateSettings removes them.
func (j *syncJob) writeSettings(want *service.Table) error {
	var p plan
	settings := nodeSettingsOf(want.Settings)
	if j.syncer.Pending() {
		late := settings
		j.lateSettings = &late
		settings.NodePorts = slices.Concat(settings.NodePorts, j.state.settings.NodePorts)
	}
	p.settings(&j.state.settings, &settings)
	j.state.settings = settings
	return j.commit(p.writes(), nil)
}

// addressSets plans the sets of addresses, which all frontends share. Additions come before the frontends. So if there
// are many, they are written at once, in transactions of their own.
func (j *syncJob) addressSets(changes []service.Change) error {
	for _, one := range [...]struct {
		set     nftset.Set
		current nftset.Counts
		of      func(*service.Frontend, func(netip.Addr))
		key     func(netip.Addr) []byte
	}{
		{nftset.Hairpin, j.state.hairpins, nftset.LocalEndpointsOf, nftset.HairpinKey},
		{nftset.ClusterIPs, j.state.clusterIPs, nftset.ClusterIPsOf, netip.Addr.AsSlice},
		{nftset.ExternalAddresses, j.state.externals, nftset.ExternalAddressesOf, netip.Addr.AsSlice},
	} {
		changed := one.current.Change(changes, one.of, j.stats.Full)
		for w := range one.current.All(one.set, changed, one.key) {
			if !w.Add {
				j.addresses.late = append(j.addresses.late, w)
				continue
			}
			if j.addresses.early = append(j.addresses.early, w); len(j.addresses.early) < frontendsPerPlan {
				continue
			}
			p := plan{early: j.addresses.early}
			if err := j.commit(p.writes(), nil); err != nil {
				return err
			}
			j.addresses.early = j.addresses.early[:0]
		}
		one.current.Note(changed)
	}
	return nil
}

// writeLateSettings writes the settings that had to wait for Switch.
func (j *syncJob) writeLateSettings() error {
	if j.lateSettings == nil {
		return nil
	}
	var p plan
	p.settings(&j.state.settings, j.lateSettings)
	j.state.settings = *j.lateSettings
	return j.commit(p.writes(), nil)
}

// writeFrontends renders some frontends and writes them. last says that no more frontends follow. The state may change
// before the write, because after an error the next Sync reads the whole state again.
func (j *syncJob) writeFrontends(changes []service.Change, last bool) error {
	p := plan{early: j.addresses.early}
	j.addresses.early = nil
	for _, c := range changes {
		k := c.Key()
		was := j.state.at(k)
		is := j.state.render(was, c.New, j.count)
		if j.stats.Full && was.equal(is) {
			if was != is && is.name != "" {
				j.state.set(k, is) // equal, but it shares memory with other frontends
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
		p.late = append(p.late, j.addresses.late...)
	}
	return j.commitChains(p.writes())
}

// commitChains writes missing chains, and then ws, which may lead to them.
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

// rewriteChains replaces the chains of another version, which were in use until Switch.
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

// commit writes, and counts the elements in stats.
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

// chainsPerCommit is the largest number of chains that one transaction adds or removes. Each chain is about ten
// messages, and the answers to all of them must fit into the buffer of the socket.
const chainsPerCommit = 500

// missingChains returns the IDs of chains that are in use and do not exist. Chains of another version count as existing
// while the kernel runs that version.
func (j *syncJob) missingChains() (all []verdictID) {
	for v, n := range j.state.chainUses {
		if c := j.state.chains[v]; n > 0 && !c.current && !(c.stale && j.syncer.Pending()) {
			all = append(all, v)
		}
	}
	return all
}

// addChains returns a function that queues load-balancing chains, and affinity-update chains of new durations.
func (j *syncJob) addChains(missing []verdictID) func(*nftables.Conn) (queued bool, err error) {
	return func(c *nftables.Conn) (queued bool, err error) {
		for _, v := range missing {
			chain := j.state.chains[v]
			if chain.current, chain.stale = true, false; !v.isDedicated() {
				chain.verdict = v
			}
			j.addShared(c, chain.verdict.shared())
			if err := j.writer.addChain(j.syncer.Table, c, v, chain.verdict); err != nil {
				return true, err
			}
			j.state.chains[v] = chain
			j.added = append(j.added, v.chainName())
		}
		updates, err := j.state.addUpdateChains(j.syncer.Table, c)
		j.affinityRules = j.affinityRules || updates
		return updates || len(missing) > 0, err
	}
}

// addShared queues the shared chains of a verdict, unless they exist.
func (j *syncJob) addShared(c *nftables.Conn, v verdictID) {
	if !j.state.shared[v] {
		j.state.shared[v] = true
		addShared(j.syncer.Table, c, v)
		j.added = append(j.added, v.sharedChains()...)
	}
}

// spareChains is how many unused chains may stay, because during a rollout the number of a Service's endpoints goes up
// and down.
const spareChains = 64

// removeUnused removes unused chains and affinity IDs. Dedicated chains and chains of other versions cannot be used
// again, so they never stay.
func (j *syncJob) removeUnused() error {
	var unused []verdictID
	spare := 0
	for v, n := range j.state.chainUses {
		if n <= 0 {
			delete(j.state.chainUses, v)
		}
	}
	isSpare := func(v verdictID) bool { return !v.isDedicated() && j.state.chains[v].current }
	for v := range j.state.chains {
		if j.state.chainUses[v] > 0 {
			continue
		}
		unused = append(unused, v)
		if isSpare(v) {
			spare++
		}
	}
	if spare <= spareChains {
		unused = slices.DeleteFunc(unused, isSpare)
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
		for _, v := range unused {
			if err := delChain(j.syncer.Table, c, v); err != nil {
				return true, err
			}
			delete(j.state.chains, v)
			if v.isDedicated() {
				j.state.dedicated--
			}
			j.removed = append(j.removed, v.chainName())
		}
		updates := false
		if (len(j.shrunk) > 0 || j.stats.Full) && !j.state.staleUpdates {
			updates, err = j.state.delUpdateChains(j.syncer.Table, c)
		}
		j.affinityRules = j.affinityRules || updates
		return updates || len(unused) > 0, err
	}
}
