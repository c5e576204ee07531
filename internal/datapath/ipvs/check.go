package ipvs

import (
	"context"
	"net/netip"
	"time"

	gomaps "maps"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/nft"
)

// verifyShare bounds the time that Check spends reading: at most a twentieth.
const verifyShare = 20

// Check implements datapath.Datapath. The nft table tells by itself whether it was
// changed; IPVS does not, so that its servers are read again each time, as long as that
// does not take more than its share. It also removes real servers that have come to
// their end.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.synced == nil {
		return drift, nil // the next Sync compares anyway
	}
	if err := d.retire(ctx, time.Now()); err != nil {
		d.forget()
		return drift, err
	}
	change, accept, err := d.watch.Look(ctx)
	if err != nil {
		return drift, err
	}
	there, err := routed()
	if err != nil {
		return drift, err
	}
	if change == nft.Rules || !there {
		d.reload = change == nft.Rules
		d.forget()
		return datapath.Drift{Rules: true}, nil
	}
	if time.Now().Before(d.verify) {
		return drift, nil
	}
	start := time.Now()
	now := &state{
		fronts: d.state.fronts, hairpins: d.state.hairpins, reserved: d.state.reserved, settings: d.state.settings,
		servers: map[id]*server{},
	}
	if change == nft.Nothing {
		err = d.readServers(ctx, now)
	} else {
		now, err = d.read(ctx)
	}
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

// retire removes the real servers that have left and have no connection any more, or
// whose time is over.
func (d *Datapath) retire(ctx context.Context, now time.Time) error {
	for i, s := range d.state.servers {
		if len(s.leaving) == 0 {
			continue
		}
		reals, err := d.wire.reals(ctx, i)
		if err != nil {
			return err
		}
		var ops []op
		left := map[netip.AddrPort]time.Time{}
		for a, until := range s.leaving {
			r, there := reals[a]
			switch {
			case !there: // another hand was faster
			case r.conns == 0 || !now.Before(until):
				ops = append(ops, op{cmd: cmdDelReal, id: i, real: a})
			default:
				left[a] = until
			}
		}
		if err := d.wire.do(ctx, ops); err != nil {
			return err
		}
		gomaps.DeleteFunc(s.leaving, func(a netip.AddrPort, _ time.Time) bool { _, stays := left[a]; return !stays })
	}
	return nil
}
