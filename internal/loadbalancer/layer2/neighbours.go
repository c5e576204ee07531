package layer2

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighboursEvery is how often the kernel is asked for the other nodes' MACs: heartbeats keep them there, and bring them soon after the start.
const neighboursFirst, neighboursEvery = 200 * time.Millisecond, time.Second

// neighbours are the MACs of the other nodes: what comes from one of these has not come from a router.
type neighbours struct {
	log   *slog.Logger
	asked atomic.Bool // there are addresses that routers lead to nodes
	read  chan map[netip.Addr]string
	macs  []string // of the other nodes, sorted: the loop's, as known is
	known bool     // they have been read
}

func newNeighbours(log *slog.Logger) *neighbours {
	return &neighbours{log: log, read: make(chan map[netip.Addr]string)}
}

// run reads all that the kernel knows, beside the loop, until ctx ends.
func (n *neighbours) run(ctx context.Context) error {
	next := time.NewTimer(neighboursFirst)
	defer next.Stop()
	for once := false; ; next.Reset(neighboursEvery) {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		if once && !n.asked.Load() {
			continue
		}
		all, err := neighbourMACs()
		if err != nil {
			n.log.Debug("cannot read the kernel's neighbours, will try again", "err", err)
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case n.read <- all:
			once = true
		}
	}
}

// neighbourMACs returns the MACs that the kernel knows, by address.
func neighbourMACs() (map[netip.Addr]string, error) {
	all := map[netip.Addr]string{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := netlink.NeighList(0, family)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if a, ok := netip.AddrFromSlice(e.IP); ok && len(e.HardwareAddr) == 6 && e.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 {
				all[a.Unmap()] = e.HardwareAddr.String()
			}
		}
	}
	return all, nil
}

// neighboured takes what the kernel knows of the other nodes.
func (s *Speaker) neighboured(ctx context.Context, all map[netip.Addr]string) {
	var macs []string
	for node, addrs := range s.addrs {
		for _, a := range addrs {
			if mac := all[a]; mac != "" && node != s.cfg.Node {
				macs = append(macs, mac)
			}
		}
	}
	slices.Sort(macs)
	if macs = slices.Compact(macs); slices.Equal(macs, s.neighbours.macs) && s.neighbours.known {
		return
	}
	s.neighbours.macs, s.neighbours.known = macs, true
	s.passOn(ctx)
}
