package layer2

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighboursFirst and neighboursInterval are the times to the first and between later reads of the kernel's neighbours.
// Heartbeats keep the other nodes among them.
const neighboursFirst, neighboursInterval = 200 * time.Millisecond, time.Second

// A neighbours knows the MACs of the other nodes. A packet from one of these MACs does not come from a router.
type neighbours struct {
	log    *slog.Logger
	wanted atomic.Bool // routers lead some address to several nodes
	read   chan map[netip.Addr]string

	// The loop's.
	macs  []string // of the other nodes, sorted
	known bool     // macs have been read
	// routers are the addresses of the BGPPeers.
	routers []netip.Addr
}

func newNeighbours(log *slog.Logger) *neighbours {
	return &neighbours{log: log, read: make(chan map[netip.Addr]string)}
}

// run reads the kernel's neighbours until ctx ends: once, and then as long as they are wanted.
func (n *neighbours) run(ctx context.Context) error {
	next := time.NewTimer(neighboursFirst)
	defer next.Stop()
	for once := false; ; next.Reset(neighboursInterval) {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		if once && !n.wanted.Load() {
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

// neighbourMACs returns the MACs of the kernel's neighbours by address, without the gateways' MACs.
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
	routers, err := gateways()
	if err != nil {
		return nil, err
	}
	return withoutRouters(all, routers), nil
}

// withoutRouters removes the MACs of routers. A node may claim a router's address, and the router's packets would then
// seem to come from a node.
func withoutRouters(all map[netip.Addr]string, routers []netip.Addr) map[netip.Addr]string {
	macs := map[string]bool{}
	for _, a := range routers {
		macs[all[a]] = true
	}
	maps.DeleteFunc(all, func(_ netip.Addr, mac string) bool { return macs[mac] })
	return all
}

// gateways returns the gateways of this machine's default routes.
func gateways() (all []netip.Addr, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			for _, hop := range append(r.MultiPath, &netlink.NexthopInfo{Gw: r.Gw}) {
				if a, ok := netip.AddrFromSlice(hop.Gw); ok {
					all = append(all, a.Unmap())
				}
			}
		}
	}
	return all, nil
}

// takeNeighbours keeps the MACs of the other nodes, and writes them into the kernel if they have changed.
func (s *Speaker) takeNeighbours(ctx context.Context, all map[netip.Addr]string) {
	n := s.forwarding.neighbours
	all = withoutRouters(all, n.routers)
	var macs []string
	for node, addrs := range s.addrs {
		for _, a := range addrs {
			if mac := all[a]; mac != "" && node != s.cfg.Node {
				macs = append(macs, mac)
			}
		}
	}
	slices.Sort(macs)
	if macs = slices.Compact(macs); slices.Equal(macs, n.macs) && n.known {
		return
	}
	n.macs, n.known = macs, true
	s.writeForwarding(ctx)
}
