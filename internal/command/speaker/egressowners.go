package speaker

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
)

// egressOwners writes the owners of announced addresses for the agent. It runs apart from the speaker's loop, which
// must not wait for a disk.
type egressOwners struct {
	log *slog.Logger
	rib podroutes.Dir
	all chan map[netip.Addr]string
}

func newEgressOwners(log *slog.Logger, dir podroutes.Dir) *egressOwners {
	return &egressOwners{log: log, rib: dir, all: make(chan map[netip.Addr]string, 1)}
}

// set replaces the owners to write. It has one caller.
func (o *egressOwners) set(all map[netip.Addr]string) {
	select {
	case <-o.all: // discards an older value
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
