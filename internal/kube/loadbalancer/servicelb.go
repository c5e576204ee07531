package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
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

// reasonUnused is the reason of the event about an ExternalIP that no Service gets.
const reasonUnused = "ExternalIPNotUsed"

// A ServiceLB gives Services of type LoadBalancer the nodes' own addresses, as K3s does. Each status lists the ports
// that it has checked. Agents serve the nodes' own addresses at these ports only. Only the elected controller runs it.
type ServiceLB struct {
	log          *slog.Logger
	sub          *kube.Subscription
	store        *kube.Store
	events       *kube.Recorder
	balancers    *kube.Feed[Balancer]
	hosts        *kube.Feed[host]
	claims       *kube.Claims // of hosts
	ranges       []netip.Prefix
	unused       map[string]netip.Addr // by node: the first ExternalIP outside of ranges that was reported
	writer       *balancerWriter
	programPorts []ipam.PortRange
	failed       map[api.Name]ipam.Event // the last failure that was reported to the owner

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu     sync.Mutex
	locals map[api.Name]bool // Services that depend on the nodes of their endpoints
}

// NewServiceLB returns the ServiceLB of a store, which must run too. class works as in NewAddresses. taken are the
// ports at which the nodes' own programs listen. An ExternalIP of a node counts only inside of ranges: a kubelet may
// name any address, and a Service's status hands it to clients.
func NewServiceLB(log *slog.Logger, s *kube.Store, events *kube.Recorder, class string, taken []ipam.PortRange, ranges []netip.Prefix) *ServiceLB {
	l := &ServiceLB{log: log, sub: s.Subscribe("servicelb"), store: s, events: events, programPorts: taken, ranges: ranges,
		failed: map[api.Name]ipam.Event{}, locals: map[api.Name]bool{}, unused: map[string]netip.Addr{}}
	l.balancers = kube.Open(s, balancersKind(s.Config().Client, class))
	l.writer = newBalancerWriter(log, s, l.balancers)
	l.hosts = kube.Open(s, kube.Kind[*corev1.Node, host]{
		Name: "nodes", Object: &corev1.Node{}, Client: kube.From(s.Config().Client.CoreV1().Nodes()), Trim: convertHost,
	})
	l.claims = kube.ClaimsOf(s, l.hosts, (*host).NodeClaims)
	l.balancers.Follow(func(name api.Name, _, _ *Balancer, _ int64) {
		l.sub.Mark(name, 0)
		l.writer.Changed(name)
	})
	l.hosts.Follow(func(api.Name, *host, *host, int64) { l.sub.Notify() })
	s.RangeFeed().Follow(func(api.Name, *kube.ServiceRange, *kube.ServiceRange, int64) { l.sub.Notify() })
	s.SliceFeed().Follow(func(_ api.Name, old, new *service.Slice, _ int64) {
		for _, slice := range []*service.Slice{old, new} {
			if slice != nil && l.isLocal(slice.Service) {
				l.sub.Notify()
			}
		}
	})
	l.sub.Need([]kube.Input{l.balancers.Gates(l.sub), l.hosts.Gates(l.sub), s.SliceFeed().Gates(l.sub)}, []kube.Input{s.RangeFeed().Gates(l.sub)})
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
	for _, d := range ipam.ShareHosts(requests, l.acceptedHosts(), l.programPorts) {
		s := balancerStatus{Addrs: d.Addrs, Leaving: d.Leaving, Held: true}
		if len(d.Addrs) > 0 {
			s.Ports, s.Mode, s.OnNodes = ports[d.Name], corev1.LoadBalancerIPModeVIP, true
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

// A host is a Node, before its claims are checked.
type host struct {
	kube.Node
	labels map[string]string // of K3s' ServiceLB
	usable bool
}

// convertHost converts a Node to the parts that load-balancer addresses need.
func convertHost(o *corev1.Node) *host {
	h := &host{Node: kube.ConvertNode(o), labels: map[string]string{}}
	for key, value := range o.Labels {
		if strings.HasPrefix(key, "svccontroller.k3s.cattle.io/") {
			h.labels[key] = value
		}
	}
	ready := slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	h.usable = ready && kube.Excluded(o) == ""
	return h
}

// acceptedHosts returns the nodes with the addresses that Services may have.
func (l *ServiceLB) acceptedHosts() (all []ipam.Host) {
	claims := l.claims.Now()
	for _, h := range l.hosts.All() {
		to := ipam.Host{Name: h.Name, Labels: h.labels, Usable: h.usable}
		for _, a := range claims.Owned(h.Name) {
			switch {
			case slices.Contains(h.Addrs[:h.Internal], a):
				to.Internal = append(to.Internal, a)
			case slices.ContainsFunc(l.ranges, func(p netip.Prefix) bool { return p.Contains(a) }):
				to.External = append(to.External, a)
			default:
				l.reportUnused(h.Name, a)
			}
		}
		all = append(all, to)
	}
	return all
}

// reportUnused reports the first ExternalIP of a node that no Service gets, once.
func (l *ServiceLB) reportUnused(node string, a netip.Addr) {
	if _, reported := l.unused[node]; reported {
		return
	}
	l.unused[node] = a
	message := fmt.Sprintf("no Service gets the ExternalIP %v: no range of --servicelb-ranges has it [if clients may use it, name its range in SERVICELB_RANGES of the ConfigMap fairway-agent]", a)
	l.log.Warn("a node's address is not used for Services", "node", node, "problem", message)
	l.events.NodeEvent(node, reasonUnused, message)
}
