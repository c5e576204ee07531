package node

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/fairway-net/fairway/internal/ipc/rib"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// RunOutside keeps routes to the pods of all nodes on a machine that is none of them, until ctx
// ends, which is no error: the same routes, by the same checks of podCIDRs, and nothing else of the
// pod network. own returns the machine's addresses.
func (n *Network) RunOutside(ctx context.Context, nodes Nodes, own func() []netip.Addr, maxRetry time.Duration) error {
	return n.follow(ctx, nodes, maxRetry, func(all []Peer) error { return n.syncOutside(Peer{Addrs: own()}, all) })
}

func (n *Network) syncOutside(self Peer, peers []Peer) error {
	return n.syncPlan(func(table *routingTable) *plan {
		all, departed := n.notice(n.now(), peers)
		return makePlan(clusterState{
			self: self, peers: all, departed: departed, networks: table.onLink, gateways: table.gateways,
			clusterCIDRs: n.ClusterCIDRs, way: WayRoutes,
		})
	})
}

// syncPlan makes the routes those of a plan that is made of what there are.
func (n *Network) syncPlan(make func(*routingTable) *plan) error {
	return withRoutes(func(netlink netlinksafe.Handle, table *routingTable) error {
		plan := make(table)
		refused, failed := syncRoutes(netlink, table.routes, plan.routes)
		n.report(slices.Concat(plan.problems, refused))
		n.countRoutes(plan)
		return failed
	})
}

// withRoutes calls f with the routes of the machine.
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

// Received is where routers' announcements are read: a rib.Memory.
type Received interface {
	Received() ([]rib.Route, error)
	Watch(ctx context.Context, changed func(), problem func(error))
}

// RunLearned keeps routes on a machine that is no node to what routers announce of the ClusterCIDRs, until
// ctx ends, which is no error: whatever is inside of them, as it is announced, and each of them by
// the longest prefix that contains it. Who may announce that, the sessions decide. own returns the
// machine's addresses.
func (n *Network) RunLearned(ctx context.Context, received Received, own func() []netip.Addr, maxRetry time.Duration) error {
	var watch sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	watch.Go(func() { received.Watch(watching, n.announcements.notify, func(error) {}) })
	defer watch.Wait()
	defer stop()
	return n.follow(ctx, noNodes{}, maxRetry, func([]Peer) error {
		all, err := received.Received()
		if err != nil {
			return err
		}
		return n.syncPlan(func(table *routingTable) *plan { return planLearned(all, n.ClusterCIDRs, table.onLink, own()) })
	})
}

// noNodes are those of a machine that needs to know none.
type noNodes struct{}

func (noNodes) Synced() <-chan struct{} { c := make(chan struct{}); close(c); return c }
func (noNodes) Dirty() <-chan struct{}  { return nil }
func (noNodes) Peers() []Peer           { return nil }

// planLearned decides about the routes of RunLearned.
func planLearned(received []rib.Route, clusterCIDRs []netip.Prefix, networks []onLink, own []netip.Addr) *plan {
	p := &plan{routes: map[netip.Prefix]route{}}
	by := newAnnounced(received, networks, own)
	near := slices.Concat(own, by.routers()) // what leads to pods must not lead to these
	add := func(prefix netip.Prefix, hops []hop) {
		if len(hops) > 0 && !slices.ContainsFunc(near, prefix.Contains) {
			p.routes[prefix] = byHops(prefix, WayBGP, hops)
		}
	}
	for prefix, hops := range by {
		if slices.ContainsFunc(clusterCIDRs, func(c netip.Prefix) bool { return c.Bits() <= prefix.Bits() && c.Contains(prefix.Addr()) }) {
			add(prefix, hops)
		}
	}
	for _, c := range clusterCIDRs {
		hops, _ := by.to(c)
		add(c, hops)
	}
	if len(p.routes) == 0 {
		p.problemf("", reasonNotAnnounced, "no router announces a way to pods: those in %v are not reachable from here [sessions of routers, what they export to this machine]", clusterCIDRs)
	}
	return p
}

// Learned returns the routes that there are, of no router: what a process of before has left, for the
// first moments of the next.
func (n *Network) Learned() (all []rib.Route, err error) {
	err = withRoutes(func(_ netlinksafe.Handle, table *routingTable) error {
		for prefix, routes := range table.routes {
			for _, r := range routes {
				for _, h := range r.hops() {
					if h.via.IsValid() {
						all = append(all, rib.Route{Prefix: prefix, NextHop: h.via})
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
