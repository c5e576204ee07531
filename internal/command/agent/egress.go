package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/podnetwork/egress"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/service"
)

// An egressSource delivers Services and pods (kube.Egress).
type egressSource interface {
	Synced() <-chan struct{}
	Dirty() <-chan struct{}
	Take() []api.Name
	Services() []*service.Service
	Pods() []*api.Pod
}

// egressAddresses decides which pods leave the cluster with which address, and informs the pod network.
type egressAddresses struct {
	log      *slog.Logger
	source   egressSource
	node     string
	rib      podroutes.Dir // the speaker's file of owners
	event    func(api.Name, api.Problem)
	owners   chan struct{} // receives when the owners have changed
	dirty    chan struct{}
	reported map[api.Name]api.Problem
	by       map[netip.Addr]string // the owners as last read

	mu   sync.Mutex
	pods map[netip.Addr]plan.EgressPod // nil: not known yet
	in   egress.Input                  // the input of the last table
	last *egress.Table                 // nil: none yet
}

// newEgressAddresses subscribes to the Services and pods of egress addresses.
func newEgressAddresses(b *base) *egressAddresses {
	e := &egressAddresses{
		log: b.log, node: b.cfg.NodeName, source: b.store.SubscribeEgress(), rib: podroutes.Of(podroutes.DefaultDir, b.cfg.NodeName), event: b.events.Event,
		owners: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
	}
	b.status.egress.Store(e)
	return e
}

// Dirty implements node.Egress.
func (e *egressAddresses) Dirty() <-chan struct{} { return e.dirty }

// Pods implements node.Egress.
func (e *egressAddresses) Pods() (all map[netip.Addr]plan.EgressPod, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pods, e.pods != nil
}

// status returns the current ways for people, without counting a pass. A nil egressAddresses has none.
func (e *egressAddresses) status() []egress.Way {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	in, last := e.in, e.last
	e.mu.Unlock()
	if last == nil {
		return nil
	}
	return last.Ways(in, e.node)
}

// Egress returns how the pods of a Service leave the cluster, as this node's agent decides. It does not read pods, so
// it counts none. The owners come from this node's speaker, if this program can read its file.
func (t *Tool) Egress(services []*service.Service, name api.Name) ([]egress.Way, error) {
	by, err := podroutes.Of(podroutes.DefaultDir, t.Config.NodeName).Owners()
	if err != nil {
		return nil, err
	}
	in := egress.ByOwners(services, by, podroutes.ByRouters)
	ways := egress.Of(egress.Compile(in).Ways(in, t.Config.NodeName), name)
	for i := range ways {
		switch {
		case !t.Config.EgressAddresses:
			ways[i].Node, ways[i].Problem = "", "the agent runs without --egress-addresses: they leave with their node's address"
		case by == nil && ways[i].Address != "":
			ways[i].Problem = "who announces the address only a node's speaker says [run this in the pod of an agent]"
		}
	}
	return ways, nil
}

func (e *egressAddresses) run(ctx context.Context) error {
	var watch sync.WaitGroup
	watch.Go(func() {
		e.rib.Watch(ctx, func() { wake(e.owners) }, func(err error) {
			e.log.Warn("changes of who announces egress addresses are found late", "err", err)
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
		start := time.Now()
		read = !e.pass(read)
		fair.Rest(ctx, time.Since(start), nil) // every change of a pod asks for a decision
	}
}

// pass decides again, after reading the owners if asked to. It reports whether the owners are known.
func (e *egressAddresses) pass(read bool) bool {
	e.source.Take()
	if read {
		owners, err := e.rib.Owners()
		if err != nil {
			e.log.Error("cannot read who announces egress addresses; they stay as they are", "err", err)
			return false
		}
		e.by = owners
	}
	in := egress.ByOwners(e.source.Services(), e.by, podroutes.ByRouters)
	in.Pods = e.source.Pods()
	table := egress.Compile(in)
	pods := make(map[netip.Addr]plan.EgressPod, len(table.Pods))
	for addr, c := range table.Pods {
		pods[addr] = plan.EgressPod{Node: c.Node, Addr: c.Addr, Gateway: c.Gateway}
	}
	e.mu.Lock()
	e.in, e.last = in, table
	same := e.pods != nil && maps.Equal(e.pods, pods)
	e.pods = pods
	e.mu.Unlock()
	if !same { // otherwise no change concerns the pod network
		wake(e.dirty)
	}
	for name, p := range table.Problems {
		if e.reported[name] != p {
			e.log.Warn("an egress address does not work", "service", name.String(), "problem", p.Message)
			e.event(name, p)
		}
	}
	e.reported = table.Problems
	return true
}

// wake leaves one notice in c.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
