package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// Check implements datapath.Datapath. If another program has changed a table of the node, it compares our chains and
// rules by their hashes, and our elements one by one.
func (d *Datapath) Check(ctx context.Context) (datapath.Drift, error) {
	if err := d.pruneLate(ctx); err != nil {
		return datapath.Drift{}, err
	}
	same := func(bool) (bool, error) {
		now, err := d.read(ctx)
		return err == nil && d.state.equal(now), err
	}
	return d.syncer.Check(ctx, nftset.Checks{Synced: d.table != nil, Forget: d.forget, Same: same})
}

// pruneLate deletes entries of affinity that packets in flight have recorded during the last Sync.
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

// equal reports whether s and o have the same elements and chains. o has been read from the kernel. equal ignores
// counts of uses, which the kernel does not have.
func (s *state) equal(o *state) bool {
	return maps.EqualFunc(s.frontends, o.frontends, func(a, b *frontendState) bool { return a.equal(b) }) &&
		maps.Equal(s.chains, o.chains) && maps.Equal(s.updateChains, o.updateChains) && maps.Equal(s.updateChains, o.confirms) &&
		s.settings.equal(&o.settings) && s.hairpins.SameAddrs(o.hairpins) && s.clusterIPs.SameAddrs(o.clusterIPs) && s.externals.SameAddrs(o.externals)
}

func (n *nodeSettings) equal(o *nodeSettings) bool {
	hosts := func(n *nodeSettings) []netip.Addr {
		return slices.SortedFunc(slices.Values(n.hosts), netip.Addr.Compare)
	}
	return n.table().Equal(o.table()) && slices.Equal(hosts(n), hosts(o))
}
