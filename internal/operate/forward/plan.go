package forward

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// A Backend is a port of a pod.
type Backend struct {
	Cluster string // the context; empty: the first one
	Pod     api.Name
	Port    uint16
}

// A Target is one port of a Service, or of a pod of a headless Service.
type Target struct {
	Cluster string // the context; empty: the first one
	Service api.Name
	Host    string // the pod of a headless Service; empty: the Service itself
	Port    uint16 // what clients ask
	Name    string // of the port; may be empty
	// Backends lead the Target's connections, in the order of their addresses. None: the Service has no endpoint now.
	Backends []Backend
}

// key identifies a Target over time.
func (t *Target) key() key { return key{t.Cluster, t.Service, t.Host, t.Port} }

type key struct {
	cluster string
	service api.Name
	host    string
	port    uint16
}

// Left is a Service, or a port of one, that cannot be forwarded.
type Left struct {
	Service api.Name
	Port    uint16 // 0: the whole Service
	Why     string
}

// A Choice is the part of a cluster that is forwarded. The zero value is all of the first cluster.
type Choice struct {
	Cluster string // the context; empty: the first one
	// Ports are the Services to forward, with the numbers of their ports; no numbers: all ports.
	Ports map[api.Name][]uint16
}

func (c Choice) has(name api.Name, port uint16) bool {
	ports, ok := c.Ports[name]
	return len(c.Ports) == 0 || ok && (len(ports) == 0 || slices.Contains(ports, port))
}

// Plan decides what is forwarded, sorted by Service, host and port.
func Plan(services []*kube.NamedService, endpoints map[api.Name][]*service.Slice, c Choice) (targets []Target, left []Left) {
	for _, s := range services {
		if _, named := c.Ports[s.Name]; len(c.Ports) > 0 && !named {
			continue
		}
		if s.External != "" {
			left = append(left, Left{s.Name, 0, "it stands for " + s.External + ", which is outside of the cluster"})
			continue
		}
		if len(s.Ports) == 0 {
			left = append(left, Left{s.Name, 0, "it has no ports"})
			continue
		}
		pods := podNames(endpoints[s.Name])
		ports := service.Backends(&s.Service, endpoints[s.Name], service.Facts{})
		for _, p := range s.Ports {
			switch {
			case !c.has(s.Name, p.Port):
			case p.Proto != api.TCP:
				left = append(left, Left{s.Name, p.Port, "the API server carries no " + p.Proto.String()})
			default:
				targets = append(targets, c.targets(s, p, ports[api.PortName{Name: s.Name, Port: p.Name}], pods)...)
			}
		}
	}
	left = append(left, c.missing(services)...)
	slices.SortStableFunc(left, func(a, b Left) int { return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Port, b.Port)) })
	slices.SortFunc(targets, func(a, b Target) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	return targets, left
}

// missing returns what was chosen by name and is not there.
func (c Choice) missing(services []*kube.NamedService) (left []Left) {
	for name, ports := range c.Ports {
		i := slices.IndexFunc(services, func(s *kube.NamedService) bool { return s.Name == name })
		if i < 0 {
			left = append(left, Left{name, 0, "there is no such Service"})
			continue
		}
		for _, port := range ports {
			if !slices.ContainsFunc(services[i].Ports, func(p service.Port) bool { return p.Port == port }) {
				left = append(left, Left{name, port, "the Service has no such port"})
			}
		}
	}
	return left
}

// targets returns the Target of a port of a Service. A headless Service has the ports of its pods, as its names in the
// cluster do, and a Target for each pod besides.
func (c Choice) targets(s *kube.NamedService, p service.Port, endpoints []service.Endpoint, pods map[netip.Addr]string) []Target {
	one := Target{Cluster: c.Cluster, Service: s.Name, Port: p.Port, Name: p.Name}
	var hosts []Target
	for _, e := range endpoints {
		pod := pods[e.Addr.Addr()]
		if pod == "" {
			continue // written by hand: the API server forwards to pods only
		}
		b := Backend{c.Cluster, api.Name{Namespace: s.Namespace, Name: pod}, e.Addr.Port()}
		one.Backends = append(one.Backends, b)
		hosts = append(hosts, Target{Cluster: c.Cluster, Service: s.Name, Host: pod, Port: b.Port, Name: p.Name, Backends: []Backend{b}})
	}
	if !s.Headless {
		return []Target{one}
	}
	if len(hosts) > 0 {
		one.Port = hosts[0].Port
	}
	return append(hosts, one)
}

// podNames returns the pods by their addresses.
func podNames(slices []*service.Slice) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, s := range slices {
		for i, name := range s.Pods.All(len(s.Endpoints)) {
			if name != "" {
				all[s.Endpoints[i].Addr] = name
			}
		}
	}
	return all
}
