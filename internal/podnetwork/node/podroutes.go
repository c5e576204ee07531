package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// restorePodRoutes adds the routes to pods of this node that another program has deleted: systemd-networkd
// deletes, when it starts, all routes that it does not know (ManageForeignRoutes). The CNI plugin writes
// them once, when it adds the pod, and beside each a permanent entry of a neighbour, which such programs
// leave alone: by these the node knows which address is behind which link.
func (n *Network) restorePodRoutes(handle netlinksafe.Handle, table *routingTable, own []netip.Prefix) error {
	neighbours, err := readNeighbours()
	if err != nil {
		return err
	}
	var failed error
	restored := 0
	for _, pod := range neighbours {
		if !pod.permanent || table.pods[pod.via] || !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(pod.via) }) {
			continue
		}
		link, err := handle.LinkByIndex(pod.link)
		if err != nil || !cni.IsPodLink(link.Attrs().Name, link.Attrs().Alias) {
			continue // the pod has gone, or it is another program's
		}
		switch err := handle.RouteAdd(cni.HostRoute(pod.link, pod.via)); {
		case err == nil:
			restored++
		case !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETDOWN):
			failed = errors.Join(failed, fmt.Errorf("restore the route to pod %s: %w", pod.via, err))
		}
	}
	if restored > 0 {
		n.Log.Warn("another program had deleted routes to pods of this node; they are there again [systemd-networkd does this: set ManageForeignRoutes=no]", "routes", restored)
	}
	return failed
}
