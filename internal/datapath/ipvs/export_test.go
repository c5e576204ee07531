//go:build uml

package ipvs

import (
	"context"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// CountAccess counts the kernel reads of a datapath that has done nothing yet, and its changes of virtual servers.
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
