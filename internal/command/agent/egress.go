package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/egress"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/node"
	"github.com/fairway-net/fairway/internal/rib"
	"github.com/fairway-net/fairway/internal/service"
)

// egressPause is between two decisions: any pod's change asks for one.
const egressPause = 100 * time.Millisecond

// egressAddresses decides which pods leave the cluster with which address, and tells the pod network.
type egressAddresses struct {
	log    *slog.Logger
	source *kube.Egress
	rib    rib.Dir // where the speaker says who announces what
	event  func(service.Name, service.Problem)
	owners chan struct{} // receives when that has changed
	dirty  chan struct{}
	told   map[service.Name]service.Problem
	by     map[netip.Addr]string // the owners when they were last read

	mu   sync.Mutex
	pods map[netip.Addr]node.EgressPod // nil: not known yet
}

// followEgress starts to decide, if it is asked to; else it returns nil.
func (a *agent) followEgress(ctx context.Context, g *errgroup.Group, store *kube.Store, events *kube.Recorder) node.Egress {
	if !a.cfg.EgressAddresses {
		return nil
	}
	e := &egressAddresses{
		log: a.log, source: store.SubscribeEgress(), rib: rib.Of(rib.DefaultDir, a.cfg.NodeName), event: events.Event,
		owners: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
	}
	g.Go(func() error { return e.run(ctx) })
	return e
}

// Dirty implements node.Egress.
func (e *egressAddresses) Dirty() <-chan struct{} { return e.dirty }

// Pods implements node.Egress.
func (e *egressAddresses) Pods() (all map[netip.Addr]node.EgressPod, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pods, e.pods != nil
}

func (e *egressAddresses) run(ctx context.Context) error {
	var watch sync.WaitGroup
	watch.Go(func() {
		e.rib.Watch(ctx, func() { wake(e.owners) }, func(err error) {
			e.log.Warn("egress addresses: a change of who announces them counts late", "err", err)
		})
	})
	defer watch.Wait()
	select {
	case <-ctx.Done():
		return nil
	case <-e.source.Synced():
	}
	for read := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-e.owners:
			read = true
		case <-e.source.Dirty():
		}
		read = !e.pass(read)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(egressPause):
		}
	}
}

// pass decides anew, with the owners read again if asked to. It reports whether they are known.
func (e *egressAddresses) pass(read bool) bool {
	e.source.Take()
	if read {
		owners, err := e.rib.Owners()
		if err != nil {
			e.log.Error("egress addresses stay as they are: who announces them cannot be read", "err", err)
			return false
		}
		e.by = owners
	}
	table := egress.Compile(egress.Input{
		Services: e.source.Services(), Pods: e.source.Pods(), Owner: func(a netip.Addr) string { return e.by[a] },
	})
	pods := make(map[netip.Addr]node.EgressPod, len(table.Pods))
	for addr, c := range table.Pods {
		pods[addr] = node.EgressPod{Node: c.Node, Addr: c.Addr, Gateway: c.Gateway}
	}
	e.mu.Lock()
	same := e.pods != nil && maps.Equal(e.pods, pods)
	e.pods = pods
	e.mu.Unlock()
	if !same { // else no change of a pod or Service matters to the pod network
		wake(e.dirty)
	}
	for name, p := range table.Problems {
		if e.told[name] != p {
			e.log.Warn("egress addresses", "service", name, "problem", p.Message)
			e.event(name, p)
		}
	}
	e.told = table.Problems
	return true
}

// wake leaves one notice.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
