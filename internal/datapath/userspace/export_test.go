package userspace

import (
	"context"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// CountReads counts the kernel reads of a datapath that has done nothing yet.
func CountReads(dp datapath.Datapath) *int {
	d, reads := dp.(*Datapath), new(int)
	d.rules = nftset.NewSyncer(datapath.Userspace, d.rules.Table, func(ctx context.Context) (*kernelState, error) {
		*reads++
		return d.read(ctx)
	})
	return reads
}
