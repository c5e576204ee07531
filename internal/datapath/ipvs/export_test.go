//go:build uml

package ipvs

import (
	"context"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// CountAccess counts how often a datapath that has done nothing yet reads what the kernel
// holds, and how often it changes virtual servers.
func CountAccess(dp datapath.Datapath) (reads, writes *int) {
	d := dp.(*Datapath)
	reads, writes = new(int), new(int)
	d.rules = nftset.NewSyncer(datapath.IPVS, d.rules.Table, func(ctx context.Context) (*state, error) {
		*reads++
		return d.read(ctx)
	})
	d.genl.fail = func() error { *writes++; return nil }
	return reads, writes
}
