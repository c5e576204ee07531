package edge

import (
	"context"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp"
	"github.com/fairway-net/fairway/internal/loadbalancer/edge"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
)

// routes returns the part of the pod network on this machine.
func (m *edgeMachine) routes(registry prometheus.Registerer) *node.Network {
	return node.New(node.Config{Log: m.log, ClusterCIDRs: m.cfg.ClusterCIDRs, Registry: registry})
}

// route keeps routes to pods until ctx ends, if the configuration asks for it. The routes stay after that.
func (m *edgeMachine) route(ctx context.Context, g *errgroup.Group, cluster *kube.Edge, registry *prometheus.Registry) error {
	switch m.cfg.Routes {
	case edge.RoutesStatic:
		nodes := edgeNodes{cluster.SubscribeNodes("routes"), cluster}
		g.Go(func() error { return m.routes(registry).RunOutside(ctx, nodes, edge.OwnAddrs, edgeMaxRetry) })
	case edge.RoutesBGP:
		return m.followRoutes(ctx, g, registry)
	}
	return nil
}

// followRoutes keeps the routes that routers announce.
func (m *edgeMachine) followRoutes(ctx context.Context, g *errgroup.Group, registry *prometheus.Registry) error {
	network := m.routes(registry)
	before, err := network.Learned()
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	received, source := podroutes.NewMemory(before), edge.RouterSource{Routers: m.cfg.Routers, Name: name}
	metrics := bgp.NewMetrics(registry)
	s, err := bgp.New(bgp.Config{
		Log: m.log, Node: name, Source: source, Health: source, RIB: received, Metrics: metrics,
		Report: func([]announce.PeerProblem) {}, Announced: func(map[api.Name]bgp.Announcement) {},
	})
	if err != nil {
		return err
	}
	m.log.Info("this machine learns routes to pods by BGP", "routers", len(m.cfg.Routers.Peers))
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { return network.RunLearned(ctx, received, edge.OwnAddrs, edgeMaxRetry) })
	return nil
}
