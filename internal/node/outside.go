package node

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/cni"
)

// RunOutside keeps routes to the pods of all nodes on a machine that is none of them, until ctx
// ends, which is no error: the same routes, by the same checks of podCIDRs, and nothing else of the
// pod network. own returns the machine's addresses.
func (n *Network) RunOutside(ctx context.Context, nodes Nodes, own func() []netip.Addr, maxRetry time.Duration) error {
	return n.follow(ctx, nodes, maxRetry, func(all []Peer) error { return n.syncOutside(Peer{Addrs: own()}, all) })
}

func (n *Network) syncOutside(self Peer, peers []Peer) error {
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer netlink.Close()
	table, err := readRoutes(netlink, nil)
	if err != nil {
		return err
	}
	all, departed := n.notice(n.now(), peers)
	plan := makePlan(clusterState{
		self: self, peers: all, departed: departed, networks: table.onLink, gateways: table.gateways,
		clusterCIDRs: n.ClusterCIDRs, way: WayRoutes,
	})
	refused, failed := syncRoutes(netlink, table.ours, plan.routes)
	n.report(slices.Concat(plan.problems, refused))
	n.countRoutes(plan)
	return failed
}

// CleanupOutside removes the routes.
func (n *Network) CleanupOutside() error {
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer netlink.Close()
	table, err := readRoutes(netlink, nil)
	if err != nil {
		return err
	}
	_, err = syncRoutes(netlink, table.ours, nil)
	return err
}
