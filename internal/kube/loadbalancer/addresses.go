package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// Addresses gives addresses of pools to Services of type LoadBalancer. It reads the input of package ipam and writes
// ipam's decisions into the statuses of the Services and pools, and into a ConfigurationState. Only the elected
// controller runs it.
type Addresses struct {
	log           *slog.Logger
	sub           *kube.Subscription
	store         *kube.Store
	events        *kube.Recorder
	balancers     *kube.Feed[Balancer]
	pools         *kube.Feed[ipam.Pool]
	namespaceFeed *kube.Feed[namespaceLabels]
	alloc         *ipam.Allocator
	writer        *balancerWriter
	report        *poolReport
	mode          corev1.LoadBalancerIPMode
	programPorts  []ipam.PortRange
	allocations   map[api.Name]*allocation
	nodes         map[netip.Addr]string // by address: the node that claims it

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu                sync.Mutex
	poolsChanged      bool // the pools have changed
	reservedChanged   bool // the reserved addresses may have changed
	changedNamespaces map[string]bool

	warned map[api.Name][]string // the warnings about each Service's annotations
}

// namespaceLabels are the labels of a namespace.
type namespaceLabels map[string]string

// NewAddresses returns the allocator of a store. The store must run too, and needs Config.Custom and AllNodes. class is
// the loadBalancerClass of our Services; empty: the Services without a class. mode is the ipMode in the statuses:
// IPModeVIP or IPModeProxy. taken are the ports at which the nodes' own programs listen.
func NewAddresses(log *slog.Logger, s *kube.Store, events *kube.Recorder, class string, mode corev1.LoadBalancerIPMode, taken []ipam.PortRange) *Addresses {
	a := &Addresses{
		mode: mode, programPorts: taken, allocations: map[api.Name]*allocation{}, log: log, sub: s.Subscribe("addresses"), store: s, events: events, alloc: ipam.New(),
		poolsChanged: true, reservedChanged: true, changedNamespaces: map[string]bool{}, warned: map[api.Name][]string{},
	}
	a.balancers = kube.Open(s, balancersKind(s.Config().Client, class))
	a.writer = newBalancerWriter(log, s, a.balancers)
	a.namespaceFeed = kube.Open(s, kube.Kind[*corev1.Namespace, namespaceLabels]{
		Name: "namespaces", Object: &corev1.Namespace{}, Client: kube.From(s.Config().Client.CoreV1().Namespaces()),
		Trim: func(o *corev1.Namespace) *namespaceLabels {
			l := namespaceLabels(maps.Clone(o.Labels))
			if l == nil {
				l = namespaceLabels{}
			}
			return &l
		},
	})
	a.pools = kube.Open(s, metallbKind(s, "ipaddresspools", convertPool))
	a.report = newPoolReport(log, s)
	a.balancers.Follow(a.balancerChanged)
	a.pools.Follow(func(api.Name, *ipam.Pool, *ipam.Pool, int64) { a.changed(&a.poolsChanged) })
	a.namespaceFeed.Follow(func(name api.Name, _, _ *namespaceLabels, _ int64) {
		a.mu.Lock()
		a.changedNamespaces[name.Name] = true
		a.mu.Unlock()
		a.sub.Notify()
	})
	s.NodeFeed().Follow(func(api.Name, *kube.Node, *kube.Node, int64) { a.changed(&a.reservedChanged) })
	s.RangeFeed().Follow(func(api.Name, *kube.ServiceRange, *kube.ServiceRange, int64) { a.changed(&a.reservedChanged) })
	s.ServiceFeed().Follow(func(name api.Name, _, _ *service.Service, _ int64) { a.serverChanged(name) })
	s.SliceFeed().Follow(func(_ api.Name, old, new *service.Slice, _ int64) {
		for _, slice := range []*service.Slice{old, new} {
			if slice != nil {
				a.serverChanged(slice.Service)
			}
		}
	})
	sub := a.sub
	a.sub.Need([]kube.Input{
		a.balancers.Gates(sub), a.pools.Gates(sub), a.namespaceFeed.Gates(sub), s.NodeFeed().Gates(sub), s.ServiceFeed().Gates(sub), s.SliceFeed().Gates(sub),
	}, []kube.Input{s.RangeFeed().Gates(sub)})
	return a
}

// changed notes that a kind has changed.
func (a *Addresses) changed(which *bool) {
	a.mu.Lock()
	*which = true
	a.mu.Unlock()
	a.sub.Notify()
}

func (a *Addresses) serverChanged(name api.Name) {
	if name == kube.APIServerService {
		a.changed(&a.reservedChanged)
	}
}

func (a *Addresses) balancerChanged(name api.Name, _, _ *Balancer, _ int64) {
	a.sub.Mark(name, 0)
	a.writer.Changed(name)
}

// Run gives addresses until ctx ends, which is no error.
func (a *Addresses) Run(ctx context.Context) error {
	var reports sync.WaitGroup
	reports.Go(func() { a.report.run(ctx) })
	defer reports.Wait()
	return a.sub.Decide(ctx, a.writer, a.decide)
}

// decide updates the allocator and publishes its decisions.
func (a *Addresses) decide(names []api.Name) {
	a.mu.Lock()
	pools, reserved, namespaces := a.poolsChanged, a.reservedChanged, a.changedNamespaces
	a.poolsChanged, a.reservedChanged, a.changedNamespaces = false, false, map[string]bool{}
	a.mu.Unlock()
	if pools {
		a.alloc.SetPools(a.pools.All())
	}
	claims := false
	if reserved {
		a.alloc.Reserve(reservedRanges(a.store))
		nodes := claimants(a.store)
		claims, a.nodes = !maps.Equal(nodes, a.nodes), nodes
	}
	for name := range namespaces {
		if l, ok := a.namespaceFeed.Get(api.Name{Name: name}); ok {
			a.alloc.SetNamespace(name, *l)
		} else {
			a.alloc.SetNamespace(name, nil)
		}
	}
	for _, name := range names {
		if b, ok := a.balancers.Get(name); ok {
			a.alloc.Set(&b.Service)
			a.warn(b)
		} else {
			a.alloc.Remove(name)
		}
	}
	decisions := a.alloc.Decide()
	for _, d := range decisions {
		reportDecision(a.log, a.events, d)
		want := balancerStatus{Addrs: d.Addrs, Pool: d.Pool, Missing: api.Cut(d.Missing, 1000), Held: true}
		if len(d.Addrs) > 0 {
			want.Mode = a.mode
		}
		a.allocations[d.Name] = a.allocations[d.Name].next(want)
		names = append(names, d.Name)
	}
	if claims {
		names = slices.AppendSeq(names, maps.Keys(a.allocations))
	}
	for _, name := range names {
		a.publish(name)
		a.release(name)
	}
	if pools || reserved || len(decisions) > 0 {
		a.report.set(a.alloc.Report())
	}
}

// release releases a Service that wants no address: it removes our finalizer and our fields. It forgets a Service that
// is gone.
func (a *Addresses) release(name api.Name) {
	b, ok := a.balancers.Get(name)
	switch {
	case !ok:
		delete(a.warned, name)
		delete(a.allocations, name)
		a.writer.Forget(name)
	case !b.Wanted:
		delete(a.allocations, name)
		a.writer.Set(name, balancerStatus{})
	}
}

// warn reports the annotations with MetalLB's old prefix or with an unknown key, again if others are there.
func (a *Addresses) warn(b *Balancer) {
	keys := slices.Concat(b.deprecated, b.unknown)
	if slices.Equal(a.warned[b.Name], keys) {
		return
	}
	a.warned[b.Name] = keys
	for _, message := range b.unknown {
		a.events.Event(b.Name, api.Problem{Reason: kube.ReasonUnknownAnnotation, Message: message})
	}
	for _, key := range b.deprecated {
		a.events.Event(b.Name, api.Problem{Reason: reasonDeprecated, Message: fmt.Sprintf("the annotation %s is deprecated [use %s…]", key, metallbPrefix)})
	}
}

// noMachines are the addresses that no single machine can have: unspecified, loopback, multicast and broadcast.
var noMachines = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("ff00::/8"),
}

// reservedRanges are the addresses that no Service may have for clients outside the cluster: the addresses that agents
// refuse (docs/decisions/0014), the pods' addresses, because a Service would take their traffic, and noMachines.
func reservedRanges(s *kube.Store) []ipam.Range {
	var all []ipam.Range
	for _, addr := range slices.Concat(s.NodeAddrs(), s.APIServers()) {
		all = append(all, ipam.Range{First: addr, Last: addr})
	}
	for _, p := range slices.Concat(s.ServiceCIDRs(), noMachines) {
		all = append(all, ipam.RangeOf(p))
	}
	claims := s.NodeClaims().Now() // a node that joins must not name the range of a pool
	for _, n := range s.NodeFeed().All() {
		for _, p := range claims.PodCIDRs(n.Name) {
			all = append(all, ipam.RangeOf(p))
		}
	}
	return all
}
