package loadbalancer

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// A ServiceLB gives Services of type LoadBalancer the nodes' own addresses, as K3s does. Each status lists the ports
// that it has checked. Agents serve the nodes' own addresses at these ports only. Only the elected controller runs it.
type ServiceLB struct {
	log          *slog.Logger
	sub          *kube.Subscription
	store        *kube.Store
	events       *kube.Recorder
	balancers    *kube.Feed[Balancer]
	hosts        *kube.Feed[ipam.Host]
	writer       *balancerWriter
	programPorts []ipam.PortRange
	failed       map[api.Name]ipam.Event // the last failure that was reported to the owner

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu     sync.Mutex
	locals map[api.Name]bool // Services that depend on the nodes of their endpoints
}

// NewServiceLB returns the ServiceLB of a store, which must run too. class works as in NewAddresses. taken are the
// ports at which the nodes' own programs listen.
func NewServiceLB(log *slog.Logger, s *kube.Store, events *kube.Recorder, class string, taken []ipam.PortRange) *ServiceLB {
	l := &ServiceLB{log: log, sub: s.Subscribe("servicelb"), store: s, events: events, programPorts: taken,
		failed: map[api.Name]ipam.Event{}, locals: map[api.Name]bool{}}
	l.balancers = kube.Open(s, balancersKind(s.Config().Client, class))
	l.writer = newBalancerWriter(log, s, l.balancers)
	l.hosts = kube.Open(s, kube.Kind[*corev1.Node, ipam.Host]{
		Name: "nodes", Object: &corev1.Node{}, Client: kube.From(s.Config().Client.CoreV1().Nodes()), Trim: ConvertHost,
	})
	l.balancers.Follow(func(name api.Name, _, _ *Balancer, _ int64) {
		l.sub.Mark(name, 0)
		l.writer.Changed(name)
	})
	l.hosts.Follow(func(api.Name, *ipam.Host, *ipam.Host, int64) { l.sub.Notify() })
	s.SliceFeed().Follow(func(_ api.Name, old, new *service.Slice, _ int64) {
		for _, slice := range []*service.Slice{old, new} {
			if slice != nil && l.isLocal(slice.Service) {
				l.sub.Notify()
			}
		}
	})
	l.sub.Need([]kube.Input{l.balancers.Gates(l.sub), l.hosts.Gates(l.sub), s.SliceFeed().Gates(l.sub)}, nil)
	return l
}

func (l *ServiceLB) isLocal(name api.Name) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locals[name]
}

// Run gives addresses until ctx ends, which is no error.
func (l *ServiceLB) Run(ctx context.Context) error {
	return l.sub.Decide(ctx, l.writer, func(names []api.Name) {
		for _, name := range names {
			b, ok := l.balancers.Get(name)
			switch {
			case !ok:
				l.writer.Forget(name)
				delete(l.failed, name)
			case !b.Wanted:
				l.writer.Set(name, balancerStatus{})
			}
		}
		l.decide()
	})
}

// decide assigns nodes to all Services again.
func (l *ServiceLB) decide() {
	ports := map[api.Name][]service.CheckedPort{}
	locals := map[api.Name]bool{}
	var requests []ipam.HostRequest
	for _, b := range l.balancers.All() {
		for _, p := range b.Ports {
			ports[b.Name] = append(ports[b.Name], service.CheckedPort(p))
		}
		if b.local {
			locals[b.Name] = true
		}
		r := ipam.HostRequest{Service: &b.Service}
		for _, p := range b.status.Ports {
			r.Held = append(r.Held, ipam.Port(p))
		}
		requests = append(requests, r)
	}
	l.mu.Lock()
	l.locals = locals // their endpoints wake us from now on
	l.mu.Unlock()
	for i, r := range requests {
		if locals[r.Name] {
			// The last endpoint of a node serves while it terminates, so the port stays open for its clients.
			e := announce.EndpointsOf(l.store.SliceFeed().Of(r.Name))
			requests[i].Nodes, requests[i].Leaving = e.Serving, leavingNodes(e)
		}
	}
	var hosts []ipam.Host
	for _, h := range l.hosts.All() {
		hosts = append(hosts, *h)
	}
	for _, d := range ipam.ShareHosts(requests, hosts, l.programPorts) {
		s := balancerStatus{Addrs: d.Addrs, Leaving: d.Leaving, Held: true}
		if len(d.Addrs) > 0 {
			s.Ports, s.Mode = ports[d.Name], corev1.LoadBalancerIPModeVIP
		}
		l.writer.Set(d.Name, s)
		l.report(d)
	}
}

// leavingNodes returns the nodes on which all serving endpoints terminate.
func leavingNodes(e announce.Endpoints) map[string]bool {
	all := maps.Clone(e.Serving)
	maps.DeleteFunc(all, func(node string, _ bool) bool { return e.Ready[node] })
	return all
}

// report reports a failure to the owner of a Service, once.
func (l *ServiceLB) report(d ipam.Decision) {
	var now ipam.Event
	if len(d.Events) > 0 {
		now = d.Events[0]
	}
	if l.failed[d.Name] != now && now.Reason != "" {
		reportDecision(l.log, l.events, d)
	}
	l.failed[d.Name] = now
}

// ConvertHost converts a Node to the parts that load-balancer addresses need.
func ConvertHost(o *corev1.Node) *ipam.Host {
	h := &ipam.Host{Name: o.Name, Labels: map[string]string{}}
	for key, value := range o.Labels {
		if strings.HasPrefix(key, "svccontroller.k3s.cattle.io/") {
			h.Labels[key] = value
		}
	}
	for _, a := range o.Status.Addresses {
		addr, err := kube.ParseAddr(a.Address)
		switch {
		case err != nil: // a host name; the nodes' feed logs invalid addresses
		case a.Type == corev1.NodeInternalIP:
			h.Internal = append(h.Internal, addr)
		case a.Type == corev1.NodeExternalIP:
			h.External = append(h.External, addr)
		}
	}
	ready := slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	h.Usable = ready && kube.Excluded(o) == ""
	return h
}
