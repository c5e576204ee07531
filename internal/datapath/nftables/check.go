package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// Check implements datapath.Datapath. If another program changed the tables of this node,
// Check compares our chains and rules by their handles, and our elements one by one.
func (d *Datapath) Check(ctx context.Context) (datapath.Drift, error) {
	if err := d.pruneLate(ctx); err != nil {
		return datapath.Drift{}, err
	}
	return d.syncer.Check(ctx, nftset.Checks{Synced: d.table != nil, Forget: d.forget, Same: func(bool) (bool, error) {
		now, err := d.read(ctx)
		return err == nil && d.state.equal(now), err
	}})
}

// pruneLate removes what the last Sync could not: the affinity that packets recorded meanwhile.
func (d *Datapath) pruneLate(ctx context.Context) error {
	if d.table == nil || len(d.pruneAgain) == 0 {
		return nil
	}
	if err := d.syncer.Watch.Begin(ctx); err != nil {
		return err
	}
	if err := d.pruneAffinity(ctx, d.pruneAgain, false); err != nil {
		return err
	}
	d.pruneAgain = nil
	return d.syncer.Watch.End(ctx, false)
}

// equal reports whether s and o, which was read, describe the same kernel state. It ignores
// use counts, which are not in the kernel.
func (s *state) equal(o *state) bool {
	return maps.EqualFunc(s.frontends, o.frontends, func(a, b *frontendState) bool { return a.equal(b) }) &&
		maps.Equal(s.chains, o.chains) && maps.Equal(s.updateChains, o.updateChains) && maps.Equal(s.updateChains, o.confirms) && s.settings.equal(&o.settings) &&
		s.hairpins.SameAddrs(o.hairpins) && s.clusterIPs.SameAddrs(o.clusterIPs)
}

func (f *nodeSettings) equal(o *nodeSettings) bool {
	hosts := func(f *nodeSettings) []netip.Addr {
		return slices.SortedFunc(slices.Values(f.hosts), netip.Addr.Compare)
	}
	return f.table().Equal(o.table()) && slices.Equal(hosts(f), hosts(o))
}
