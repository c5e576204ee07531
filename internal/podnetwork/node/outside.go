package node

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// RunOutside keeps routes to the pods of all nodes on a machine that is no node. It returns nil when ctx ends. Its
// routes and checks of podCIDRs are those of a node, and it makes nothing else of the pod network. own returns the
// machine's addresses.
func (n *Network) RunOutside(ctx context.Context, nodes Nodes, own func() []netip.Addr, maxRetry time.Duration) error {
	return n.follow(ctx, nodes, maxRetry, func(all []plan.Peer) error { return n.syncOutside(plan.Peer{Addrs: own()}, all) })
}

func (n *Network) syncOutside(self plan.Peer, peers []plan.Peer) error {
	return n.syncPlan(func(table *routingTable) *plan.Plan {
		all, departed := n.Notice(n.now(), peers)
		return plan.Make(plan.State{
			Self: self, Peers: all, Departed: departed, Networks: table.onLink, Gateways: table.gateways,
			ClusterCIDRs: n.ClusterCIDRs, Way: plan.WayRoutes,
		})
	})
}

// syncPlan writes the routes of a plan. make returns the plan for the machine's routing table.
func (n *Network) syncPlan(make func(*routingTable) *plan.Plan) error {
	return withRoutes(func(netlink netlinksafe.Handle, table *routingTable) error {
		p := make(table)
		refused, failed := syncRoutes(netlink, table.routes, p.Routes)
		n.report(slices.Concat(p.Problems, refused))
		n.countRoutes(p)
		return failed
	})
}

// withRoutes calls f with the machine's routing table.
func withRoutes(f func(netlinksafe.Handle, *routingTable) error) error {
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer netlink.Close()
	table, err := readRoutes(netlink, nil)
	if err != nil {
		return err
	}
	return f(netlink, table)
}

// Received has the routers' announcements: a podroutes.Memory.
type Received interface {
	Received() ([]podroutes.Route, error)
	Watch(ctx context.Context, changed func(), problem func(error))
}

// RunLearned keeps routes on a machine that is no node, from routers' announcements. It returns nil when ctx ends. It
// takes each announced prefix inside the ClusterCIDRs. For each ClusterCIDR it takes the longest announced prefix that
// contains the ClusterCIDR. The BGP sessions decide who may announce. own returns the machine's addresses.
func (n *Network) RunLearned(ctx context.Context, received Received, own func() []netip.Addr, maxRetry time.Duration) error {
	var watch sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	watch.Go(func() { received.Watch(watching, n.announcements.notify, func(error) {}) })
	defer watch.Wait()
	defer stop()
	return n.follow(ctx, noNodes{}, maxRetry, func([]plan.Peer) error {
		all, err := received.Received()
		if err != nil {
			return err
		}
		return n.syncPlan(func(table *routingTable) *plan.Plan {
			return plan.MakeLearned(announcements(all), n.ClusterCIDRs, table.onLink, own())
		})
	})
}

// noNodes is an empty list of nodes.
type noNodes struct{}

func (noNodes) Synced() <-chan struct{} { c := make(chan struct{}); close(c); return c }
func (noNodes) Dirty() <-chan struct{}  { return nil }
func (noNodes) Peers() []plan.Peer      { return nil }

// Learned returns the routes in the kernel as announcements without a router. A previous process has left them, and
// they bridge the first moments of this one.
func (n *Network) Learned() (all []podroutes.Route, err error) {
	err = withRoutes(func(_ netlinksafe.Handle, table *routingTable) error {
		for prefix, routes := range table.routes {
			for _, r := range routes {
				for _, h := range r.Hops() {
					if h.Via.IsValid() {
						all = append(all, podroutes.Route{Prefix: prefix, NextHop: h.Via})
					}
				}
			}
		}
		return nil
	})
	return all, err
}

// CleanupOutside removes the routes.
func (n *Network) CleanupOutside() error {
	return withRoutes(func(netlink netlinksafe.Handle, table *routingTable) error {
		_, err := syncRoutes(netlink, table.routes, nil)
		return err
	})
}
