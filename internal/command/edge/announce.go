package edge

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/loadbalancer/edge"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/proxy"
)

// announce lets this machine announce the addresses in the kernel's table, if the configuration asks for it. It returns a
// function that reports why announcing does not work.
func (m *edgeMachine) announce(ctx context.Context, g *errgroup.Group, cutOff func() string, lease layer2.Lease, applied *proxy.Applied, registry prometheus.Registerer) (func() error, error) {
	a := m.cfg.Announce
	if a == nil { // the fence of an earlier process would mute this machine forever
		return func() error { return nil }, fence.Remove(ctx)
	}
	lock, err := fence.Lock(ctx)
	if err != nil {
		return nil, err
	}
	source := edge.NewAnnounced(m.cfg, applied)
	s := layer2.New(layer2.Config{
		Log: m.log, Node: a.Name, Key: a.Key, Port: numbers.PortHeartbeat, Source: source, Lease: lease,
		Assigned: func(map[api.Name]layer2.Assignment) {}, Dead: func([]string) {},
		Event: func(name api.Name, p api.Problem) {
			m.log.Warn("an address is not announced", "service", name.String(), "problem", p.Message)
		},
		Metrics: layer2.NewMetrics(registry, a.Name), Excluded: cutOff, Stateless: m.cfg.Stateless(),
	})
	m.log.Info("this machine announces its addresses", "name", a.Name, "members", len(a.Members), "lease", a.NeedsLease())
	g.Go(func() error { return source.Run(ctx) })
	g.Go(func() error {
		defer lock.Release()
		return s.Run(ctx)
	})
	return s.Healthy, nil
}
