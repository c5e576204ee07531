// Package iptables is the datapath that uses iptables: the chains that kube-proxy's mode
// iptables writes and that every article about Services shows.
//
//	PREROUTING, OUTPUT → KUBE-SERVICES ─┬→ KUBE-SVC-… ──────────────┬→ KUBE-SEP-… → DNAT
//	                       │            ├→ KUBE-EXT-… → KUBE-SVL-… ─┘      │
//	                       │            └→ KUBE-FW-…  → KUBE-EXT-…   KUBE-MARK-MASQ
//	                       └→ KUBE-NODEPORTS → KUBE-EXT-…
//	POSTROUTING → KUBE-POSTROUTING: masquerade what is marked
//	filter: KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, KUBE-NODEPORTS reject and drop
//
// It hides how a Table becomes rules, and which of the two iptables there are (nft,
// legacy) is in use. It promises, beyond the contract in package datapath, that
// a change writes its own chains alone, with iptables-restore, and
// that all it wrote can be read back from iptables-save: what rules do not show by
// themselves is in their comments, and the node's settings are in the chain FAIRWAY.
//
// Two things that iptables cannot do are in a small table of nf_tables beside it
// (helper.nft.tmpl): clients that stay at their endpoint, without xt_recent's limit of
// 100 for each endpoint, and the refusal of packets to a ClusterIP at a port that no Service has.
//
// It needs the programs iptables-*, ip6tables-* and nft.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is kube-proxy's: bit 14.
const DefaultMark = numbers.MarkMasquerade

// Config says how the datapath works. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
	// Variant is which iptables is used.
	Variant Variant
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	datapath.Tracked
	cfg      Config
	variant  Variant      // Auto: not known
	fail     func() error // a test's fault in writes; may be nil
	helper   *helper
	renderer *renderer
	table    *service.Table // what the kernel holds; nil: not known, read it
	adopted  *snapshot      // what Adopt read, for the first Sync; nil: nothing
	groups   map[group][]*service.Frontend
	differs  difference // what the last full Sync would have to write again
	reload   bool       // the helper's rules were changed: load it again
	verify   time.Time  // when Check may read everything again
	reader   rulesReader
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	if cfg.Variant > Legacy {
		return nil, fmt.Errorf("iptables: there is no variant %d", cfg.Variant)
	}
	return &Datapath{cfg: cfg, helper: newHelper()}, nil
}

// Info implements datapath.Datapath. Nothing is counted: iptables' own counters start anew
// with each rule that is written.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.IPTables, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin),
		Protocols:  []api.Proto{api.TCP, api.UDP, api.SCTP},

		WritesLists: true,
	}}
}

// FailWrites makes every write ask f first and fail with its error. It is for tests
// that inject faults.
func (d *Datapath) FailWrites(f func() error) {
	d.fail = f
	d.helper.table.FailWrites(f)
}

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	if err := d.helper.table.Probe(ctx); err != nil {
		return err
	}
	var missing error
	for _, v := range []Variant{NFT, Legacy} {
		if d.cfg.Variant != Auto && d.cfg.Variant != v {
			continue
		}
		err := xtables.Installed(xtables.Program(v, true, "restore"))
		if err == nil {
			return nil
		}
		missing = errors.Join(missing, err)
	}
	return missing
}

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	var stats datapath.Stats
	var err error
	if d.table == nil || !d.table.Settings.Equal(want.Settings) {
		stats, err = d.syncFull(ctx, want)
	} else {
		err = d.changes(ctx, want, &stats)
	}
	if err != nil {
		d.forget() // the next Sync asks the kernel
		return stats, fmt.Errorf("sync iptables: %w", err)
	}
	return stats, nil
}

// Counts implements datapath.Datapath: this mode counts nothing.
func (d *Datapath) Counts(ctx context.Context) (map[api.PortName]datapath.Count, error) {
	return nil, nil
}

// Drain implements datapath.Datapath.
func (d *Datapath) Drain(ctx context.Context) (bool, error) { return datapath.Drained(d.Cleanup(ctx)) }

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// write makes one family's changes. It deletes hooks after new ones are in place: a packet that passes both meets the
// same chains twice, which changes nothing for it.
func (d *Datapath) write(ctx context.Context, is4 bool, s *script) error {
	if text := s.String(); text != "" {
		restore := func() error { return d.restore(ctx, d.variant, is4, text) }
		if d.variant == NFT { // each COMMIT is one change in the kernel's count
			counted := restore
			restore = func() error { return d.helper.watch.Count(ctx, uint32(strings.Count(text, "COMMIT\n")), counted) }
		}
		if err := restore(); err != nil {
			return err
		}
	}
	return d.unhook(ctx, is4, s.unhooks)
}

// unhook deletes hooks by their handles. iptables-nft finds a rule by its text. It does not find a rule that has an
// older revision of a match than iptables-nft writes now. iptables-nft writes such a rule when the kernel is out of
// memory while it asks for the revisions.
func (d *Datapath) unhook(ctx context.Context, is4 bool, hooks []hook) error {
	var text strings.Builder
	for _, h := range hooks {
		fmt.Fprintf(&text, "delete rule %v %s %s handle %d\n", family(is4), h.in.table, h.in.name, h.handle)
	}
	if text.Len() == 0 {
		return nil
	}
	return d.helper.table.Run(ctx, text.String())
}

func family(is4 bool) nft.Family {
	if is4 {
		return nft.IPv4
	}
	return nft.IPv6
}

// restore applies text with iptables-restore.
func (d *Datapath) restore(ctx context.Context, v Variant, is4 bool, text string) error {
	if d.fail != nil {
		if err := d.fail(); err != nil {
			return err
		}
	}
	return xtables.Restore(ctx, v, is4, text)
}

// forget makes the next Sync ask the kernel.
func (d *Datapath) forget() {
	d.table, d.groups, d.renderer, d.variant, d.adopted = nil, nil, nil, Auto, nil
	d.helper.elems = nil
	d.reader.close()
	d.helper.watch.Reset()
	d.helper.table.Close()
}

// choose chooses the variant of iptables, if it is not known.
func (d *Datapath) choose(ctx context.Context, s *snapshot) (err error) {
	if d.variant == Auto {
		d.variant = d.cfg.Variant
	}
	if d.variant == Auto {
		d.variant, err = s.choose(ctx)
	}
	return err
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	out, err := d.adopt(ctx)
	if err != nil {
		return datapath.Adopted{Table: &service.Table{}, Found: out.Found}, fmt.Errorf("adopt iptables: %w", err)
	}
	return out, nil
}

// adopt reads everything, and keeps it for the first Sync if the kernel can tell by then
// whether another program has written since.
func (d *Datapath) adopt(ctx context.Context) (out datapath.Adopted, err error) {
	watched := false
	if d.table == nil {
		d.helper.watch.Reset()
		watched = d.helper.watch.Begin(ctx) == nil
	}
	s := d.newSnapshot()
	if err := d.choose(ctx, s); err != nil {
		return out, err
	}
	all, err := s.all(ctx, d.variant)
	if err != nil {
		return out, err
	}
	if out.Found, err = s.adopted(ctx); err != nil {
		return out, err
	}
	if out.Table, err = table(all); err != nil {
		return out, err
	}
	if d.table == nil && watched {
		d.adopted = s
	}
	return out, nil
}

// start returns what the kernel holds before the first Sync: what Adopt read, if no other
// program has written since. iptables-legacy's rules are not in the kernel's count of
// changes; a Check compares those with what was read.
func (d *Datapath) start(ctx context.Context) (*snapshot, error) {
	s := d.adopted
	if d.adopted = nil; s != nil {
		settled, err := d.helper.watch.Settled(ctx)
		if err != nil || settled {
			return s, err
		}
	}
	d.helper.watch.Reset()
	return d.newSnapshot(), d.helper.watch.Begin(ctx)
}

// syncFull compares everything with the kernel and writes what differs.
func (d *Datapath) syncFull(ctx context.Context, want *service.Table) (stats datapath.Stats, err error) {
	stats.Full = true
	kernel, err := d.start(ctx)
	if err != nil {
		return stats, err
	}
	if err := d.choose(ctx, kernel); err != nil {
		return stats, err
	}
	if err := d.helper.load(ctx, d.reload); err != nil {
		return stats, err
	}
	all, err := kernel.all(ctx, d.variant)
	if err != nil {
		return stats, err
	}
	elems, err := d.helper.read(ctx)
	if err != nil {
		return stats, err
	}
	if was, err := table(all); err == nil {
		stats.Frontends = len(service.Diff(was, want))
	} else {
		_, stats.Frontends = want.Len() // the kernel's rules cannot be read as a table
	}
	if d.renderer == nil || !d.renderer.settings.Equal(want.Settings) {
		d.readNumbers(want.Settings, all, elems)
	}
	groups := map[group][]*service.Frontend{}
	for _, f := range want.Sorted() {
		groups[groupOf(f)] = append(groups[groupOf(f)], f)
	}
	scripts, wanted := d.planAll(groups, all)
	step := planElems(elems, keys(wanted))
	settings, err := d.helper.settings(ctx, want.Settings)
	if err != nil {
		return stats, err
	}
	step.before, step.rules = append(settings, step.before...), true
	for name := range updateChains(wanted) { // their rules are not read
		if !slices.Contains(step.newChains, name) {
			step.newChains = append(step.newChains, name)
		}
	}
	if err := d.apply(ctx, step, scripts, &stats); err != nil {
		return stats, err
	}
	if err := d.readBack(ctx, groups, scripts); err != nil {
		return stats, err
	}
	stats.Differs = d.differs.String()
	d.helper.elems, d.reload = wanted, false
	if err := d.noteSynced(ctx, want, groups, true); err != nil {
		return stats, err
	}
	return stats, d.helper.watch.End(ctx, true)
}

// planAll plans both families from the start, and returns the helper's elements that they need.
func (d *Datapath) planAll(groups map[group][]*service.Frontend, all map[bool]*familyState) (map[bool]*script, map[elem]int) {
	scripts, wanted := map[bool]*script{}, map[elem]int{}
	for is4, h := range all {
		l, entries := d.family(groups, is4, wanted)
		scripts[is4] = newScript()
		scripts[is4].changeAll(h, l, entries)
	}
	return scripts, wanted
}

// family renders all of one family, and adds to the elements that are wanted.
func (d *Datapath) family(groups map[group][]*service.Frontend, is4 bool, wanted map[elem]int) (*layout, map[chain][]string) {
	l, entries := d.renderer.layout(is4, d.cfg.Mark), map[chain][]string{}
	for _, g := range sortedGroups(groups) {
		one := d.renderer.render(is4, groups[g])
		maps.Copy(l.chains, one.chains)
		for c, rules := range one.entries {
			entries[c] = append(entries[c], rules...)
		}
		addCounts(wanted, one.elems)
	}
	return l, entries
}

// changes writes what differs from the last table.
func (d *Datapath) changes(ctx context.Context, want *service.Table, stats *datapath.Stats) error {
	all := service.Diff(d.table, want)
	if len(all) == 0 {
		d.table = want
		return nil
	}
	if err := d.helper.watch.Begin(ctx); err != nil {
		return err
	}
	stats.Frontends = len(all)
	groups := changedGroups(want, all)
	scripts, counts := d.planChange(groups)
	was, is := map[elem]bool{}, map[elem]bool{}
	for e, n := range counts {
		if had := d.helper.elems[e]; had > 0 {
			was[e] = true
		}
		if d.helper.elems[e]+n > 0 {
			is[e] = true
		}
	}
	step := d.sharedChains(planElems(was, is), counts)
	if err := d.apply(ctx, step, scripts, stats); err != nil {
		return err
	}
	addCounts(d.helper.elems, counts)
	if err := d.noteSynced(ctx, want, groups, false); err != nil {
		return err
	}
	return d.helper.watch.End(ctx, len(step.newChains)+len(step.oldChains) > 0)
}

// sharedChains corrects which chains are added and removed: other elements may use them too.
func (d *Datapath) sharedChains(s elemChange, counts map[elem]int) elemChange {
	if len(s.newChains)+len(s.oldChains) == 0 {
		return s
	}
	before := updateChains(d.helper.elems)
	next := maps.Clone(d.helper.elems)
	addCounts(next, counts)
	after := updateChains(next)
	s.newChains = slices.DeleteFunc(s.newChains, func(name string) bool { return before[name] })
	s.oldChains = slices.DeleteFunc(s.oldChains, func(name string) bool { return after[name] })
	return s
}

// apply writes.
func (d *Datapath) apply(ctx context.Context, s elemChange, scripts map[bool]*script, stats *datapath.Stats) error {
	if err := d.helper.first(ctx, s); err != nil {
		return err
	}
	for _, is4 := range families() {
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
	for _, w := range slices.Concat(s.before, s.after) {
		if w.Add {
			stats.Added++
		} else {
			stats.Deleted++
		}
	}
	return d.helper.last(ctx, s)
}

// noteSynced notes what the kernel holds now, and deletes clients of lists that are gone.
func (d *Datapath) noteSynced(ctx context.Context, want *service.Table, groups map[group][]*service.Frontend, all bool) error {
	d.table = want
	if all {
		d.groups = groups
	}
	for g, fronts := range groups {
		if d.groups[g] = fronts; len(fronts) == 0 {
			delete(d.groups, g)
		}
	}
	if used, released := d.renderer.forget(d.helper.elems); all || released {
		return d.helper.prune(ctx, used)
	}
	return nil
}
