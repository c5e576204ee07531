package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/nft"
)

// verifyShare bounds the time that Check spends reading: a node where another program
// changes nf_tables all the time must not spend more than a twentieth on it.
const verifyShare = 20

// Check implements datapath.Datapath. If another program changed the tables of this node,
// Check compares our chains and rules by their handles, and our elements one by one.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.table == nil {
		return drift, nil // the next Sync compares anyway
	}
	if len(d.pruneAgain) > 0 {
		if err := d.watch.Begin(ctx); err != nil {
			return drift, err
		}
		if err := d.pruneAffinity(ctx, d.pruneAgain, false); err != nil {
			return drift, err
		}
		d.pruneAgain = nil
		if err := d.watch.End(ctx, false); err != nil {
			return drift, err
		}
	}
	change, accept, err := d.watch.Look(ctx)
	switch {
	case err != nil || change == nft.Nothing:
		return drift, err
	case change == nft.Rules:
		d.reload = true
		d.forget()
		return datapath.Drift{Rules: true}, nil
	case time.Now().Before(d.verify):
		return drift, nil
	}
	start := time.Now()
	now, err := read(ctx, d.kernel)
	if err != nil {
		return drift, err
	}
	d.verify = time.Now().Add(verifyShare * time.Since(start))
	if !d.state.same(now) {
		d.forget()
		return datapath.Drift{Elements: true}, nil
	}
	accept()
	return drift, nil
}

// same reports whether s and o describe the same kernel state. It ignores use counts, which
// are not in the kernel.
func (s *state) same(o *state) bool {
	return maps.EqualFunc(s.frontends, o.frontends, func(a, b *frontendState) bool { return a.equal(b) }) &&
		maps.Equal(s.chains, o.chains) && maps.Equal(s.updateChains, o.updateChains) && s.settings.equal(&o.settings) &&
		s.hairpins.SameAddrs(o.hairpins) && s.clusterIPs.SameAddrs(o.clusterIPs)
}

func (f *nodeSettings) equal(o *nodeSettings) bool {
	hosts := func(f *nodeSettings) []netip.Addr {
		return slices.SortedFunc(slices.Values(f.hosts), netip.Addr.Compare)
	}
	return f.table().Equal(o.table()) && slices.Equal(hosts(f), hosts(o))
}
