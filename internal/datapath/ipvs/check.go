package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// Check implements datapath.Datapath. The generation of nf_tables shows a change of the nft table. IPVS has no
// generation, so Check reads its servers each time, as long as that takes no more than its share of the time. Check
// also removes real servers that have drained.
func (d *Datapath) Check(ctx context.Context) (datapath.Drift, error) {
	if err := d.removeDrained(ctx, time.Now()); err != nil {
		d.forget()
		return datapath.Drift{}, err
	}
	return d.rules.Check(ctx, nftset.Checks{Synced: d.applied != nil, Forget: d.forget, Routed: routed, Always: true, Same: func(changed bool) (same bool, err error) {
		now := &state{
			frontends: d.state.frontends, hairpins: d.state.hairpins, clusterIPs: d.state.clusterIPs, externals: d.state.externals, settings: d.state.settings,
			classes: d.state.classes,
			servers: map[serverID]*virtualServer{},
		}
		if changed {
			now, err = d.read(ctx)
		} else {
			err = d.readServers(ctx, now)
		}
		return err == nil && d.state.equal(now), err
	}})
}

// removeDrained removes the leaving real servers that have no connection any more, or whose time is over.
func (d *Datapath) removeDrained(ctx context.Context, now time.Time) error {
	if d.applied == nil {
		return nil
	}
	for i, s := range d.state.servers {
		if len(s.leaving) == 0 {
			continue
		}
		reals, err := d.genl.reals(ctx, i)
		if err != nil {
			return err
		}
		var ops []serverOp
		left := map[netip.AddrPort]time.Time{}
		for a, until := range s.leaving {
			r, there := reals[a]
			switch {
			case !there: // another program has removed it already
			case r.conns == 0 || !now.Before(until):
				ops = append(ops, serverOp{cmd: cmdDelReal, server: i, real: a})
			default:
				left[a] = until
			}
		}
		if err := d.genl.do(ctx, ops); err != nil {
			return err
		}
		maps.DeleteFunc(s.leaving, func(a netip.AddrPort, _ time.Time) bool { _, stays := left[a]; return !stays })
	}
	return nil
}
