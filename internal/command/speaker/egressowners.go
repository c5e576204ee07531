package speaker

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/fairway-net/fairway/internal/ipc/rib"
)

// egressOwners hands the speaker's word on who announces what to the agent, beside the speaker's loop, which
// must not wait for a disk.
type egressOwners struct {
	log *slog.Logger
	rib rib.Dir
	all chan map[netip.Addr]string
}

func newEgressOwners(log *slog.Logger, dir rib.Dir) *egressOwners {
	return &egressOwners{log: log, rib: dir, all: make(chan map[netip.Addr]string, 1)}
}

// set takes what is to be said. It has one caller.
func (o *egressOwners) set(all map[netip.Addr]string) {
	select {
	case <-o.all: // an older one
	default:
	}
	o.all <- all
}

func (o *egressOwners) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case all := <-o.all:
			if err := o.rib.SetOwners(all); err != nil {
				o.log.Error("cannot tell this node's agent who announces egress addresses", "err", err)
			}
		}
	}
}
