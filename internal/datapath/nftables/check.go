package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
)

// Check implements datapath.Datapath. If another program changed the tables of this node,
// Check compares our chains and rules by their handles, and our elements one by one.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.table == nil {
		return drift, nil // the next Sync compares anyway
	}
	if len(d.pruneAgain) > 0 {
		if err := d.rules.Watch.Begin(ctx); err != nil {
			return drift, err
		}
		if err := d.pruneAffinity(ctx, d.pruneAgain, false); err != nil {
			return drift, err
		}
		d.pruneAgain = nil
		if err := d.rules.Watch.End(ctx, false); err != nil {
			return drift, err
		}
	}
	drift, err = d.rules.Check(ctx, false, func(bool) (bool, error) {
		now, err := d.read(ctx)
		return err == nil && d.state.same(now), err
	})
	if drift.Any() {
		d.forget()
	}
	return drift, err
}

// same reports whether s and o, which was read, describe the same kernel state. It ignores
// use counts, which are not in the kernel.
func (s *state) same(o *state) bool {
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
