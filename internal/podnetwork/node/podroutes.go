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

// restorePodRoutes adds the routes to pods of this node that another program has deleted. systemd-networkd deletes all
// unknown routes when it starts (ManageForeignRoutes). The CNI plugin writes a route only once, when it adds the pod.
// It also writes a permanent neighbour entry, which other programs leave alone. This entry tells which pod is behind
// which link.
func (n *Network) restorePodRoutes(handle netlinksafe.Handle, table *routingTable, own []netip.Prefix) error {
	neighbours, err := readNeighbours()
	if err != nil {
		return err
	}
	var failed error
	restored := 0
	for _, pod := range neighbours {
		if !pod.permanent || table.pods[pod.Via] != 0 || !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(pod.Via) }) {
			continue
		}
		link, err := handle.LinkByIndex(pod.Link)
		if err != nil || !cni.IsPodLink(link.Attrs().Name, link.Attrs().Alias) {
			continue // the pod has gone, or the link is another program's
		}
		switch err := handle.RouteAdd(cni.HostRoute(pod.Link, pod.Via)); {
		case err == nil:
			restored++
		case !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETDOWN):
			failed = errors.Join(failed, fmt.Errorf("restore the route to pod %s: %w", pod.Via, err))
		}
	}
	if restored > 0 {
		n.Log.Warn("another program had deleted routes to pods of this node; they are there again [systemd-networkd does this: set ManageForeignRoutes=no]", "routes", restored)
	}
	return failed
}
