package names

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// prefixes are the beginnings of ExternalDNS's annotations: since its version 0.22, and before. The first one wins.
var prefixes = []string{"external-dns.kubernetes.io/", externalDNS}

// annotation returns an annotation of ExternalDNS without the prefix.
func annotation(o metav1.Object, key string) string {
	for _, prefix := range prefixes {
		if v, ok := o.GetAnnotations()[prefix+key]; ok {
			return v
		}
	}
	return ""
}

// published returns the parts of an object that all kinds have; nil: the annotation controller names another program.
func published(kind string, o metav1.Object) *names.Object {
	if c := annotation(o, "controller"); c != "" && c != "dns-controller" {
		return nil
	}
	out := object(kind, o)
	out.Hostnames, out.TTL = list(annotation(o, "hostname")), ttl(annotation(o, "ttl"))
	return &out
}

// targets replaces addresses and host names by those of the annotation target.
func targets(o metav1.Object, addresses *[]netip.Addr, hosts *[]string) (given bool) {
	all := list(annotation(o, "target"))
	if len(all) == 0 {
		return false
	}
	*addresses, *hosts = nil, nil
	for _, one := range all {
		*addresses, *hosts = target(*addresses, *hosts, one)
	}
	return true
}

// A service is a Service with names, and what its addresses depend on.
type service struct {
	names.Object
	internal      []string // host names for the ClusterIPs
	clusterIPs    []netip.Addr
	nodePort      bool // the addresses are those of nodes
	headless      bool // the addresses are those of endpoints
	local         bool // only nodes with endpoints
	notReady      bool // endpoints count before they are ready
	access        string
	endpointsType string
}

// convertSource keeps Services with host names.
func convertSource(s *corev1.Service) *service {
	o := published("Service", s)
	if o == nil {
		return nil
	}
	out := &service{Object: *o, internal: list(annotation(s, "internal-hostname")), access: annotation(s, "access"), endpointsType: annotation(s, "endpoints-type"),
		local: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal, notReady: s.Spec.PublishNotReadyAddresses}
	if len(out.Hostnames)+len(out.internal) == 0 {
		return nil
	}
	for _, ip := range s.Spec.ClusterIPs {
		if a, err := kube.ParseAddr(ip); err == nil {
			out.clusterIPs = append(out.clusterIPs, a)
		}
	}
	if targets(s, &out.Addresses, &out.Targets) {
		return out
	}
	switch {
	case s.Spec.Type == corev1.ServiceTypeLoadBalancer:
		for _, i := range s.Status.LoadBalancer.Ingress {
			out.Addresses, out.Targets = target(out.Addresses, out.Targets, cmp.Or(i.IP, i.Hostname))
		}
	case s.Spec.Type == corev1.ServiceTypeNodePort:
		out.nodePort = true
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		out.Addresses, out.Targets = target(nil, nil, s.Spec.ExternalName)
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		out.headless = true
	}
	return out
}

// An endpoint is one endpoint of a Service.
type endpoint struct {
	hostname, node string
	addr           netip.Addr
	ready          bool
}

// A slice has the endpoints of an EndpointSlice.
type slice struct {
	service   api.Name
	endpoints []endpoint
}

// convertSlice keeps the endpoints of headless Services. Of other Services it keeps which nodes have ready endpoints.
func convertSlice(s *discoveryv1.EndpointSlice) *slice {
	out := &slice{service: api.Name{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}}
	if out.service.Name == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	_, headless := s.Labels[corev1.IsHeadlessService]
	nodes := map[string]bool{}
	for _, e := range s.Endpoints {
		one := endpoint{ready: e.Conditions.Ready == nil || *e.Conditions.Ready}
		if e.NodeName != nil {
			one.node = *e.NodeName
		}
		if headless {
			if len(e.Addresses) == 0 {
				continue
			}
			var err error
			if one.addr, err = kube.ParseAddr(e.Addresses[0]); err != nil {
				continue
			}
			if e.Hostname != nil {
				one.hostname = *e.Hostname
			}
		} else if !one.ready || nodes[one.node] {
			continue
		}
		nodes[one.node] = true
		out.endpoints = append(out.endpoints, one)
	}
	return out
}

// convertPublishedIngress also counts the hosts of TLS, as ExternalDNS does.
func convertPublishedIngress(i *networkingv1.Ingress) *names.Object {
	o := published("Ingress", i)
	if o == nil {
		return nil
	}
	source := annotation(i, "ingress-hostname-source")
	if source == "defined-hosts-only" {
		o.Hostnames = nil
	}
	if source != "annotation-only" {
		for _, r := range i.Spec.Rules {
			o.Hostnames = append(o.Hostnames, r.Host)
		}
		for _, t := range i.Spec.TLS {
			o.Hostnames = append(o.Hostnames, t.Hosts...)
		}
	}
	slices.Sort(o.Hostnames)
	o.Hostnames = slices.DeleteFunc(slices.Compact(o.Hostnames), func(h string) bool { return h == "" })
	if !targets(i, &o.Addresses, &o.Targets) {
		for _, in := range i.Status.LoadBalancer.Ingress {
			o.Addresses, o.Targets = target(o.Addresses, o.Targets, cmp.Or(in.IP, in.Hostname))
		}
	}
	return o
}

// convertPublishedRoute is convertRoute by ExternalDNS's annotations.
func convertPublishedRoute(u *unstructured.Unstructured, kind string) *names.Object {
	o, o2 := convertRoute(u, kind), published(kind, u)
	if o == nil || o2 == nil {
		return nil
	}
	if len(o.Parents) > 0 {
		for _, h := range o2.Hostnames {
			if !slices.Contains(o.Hostnames, h) {
				o.Hostnames = append(o.Hostnames, h)
			}
		}
	}
	o.TTL = o2.TTL
	return o
}

// convertPublishedGateway is convertGateway with the annotation target.
func convertPublishedGateway(u *unstructured.Unstructured) *names.Gateway {
	g := convertGateway(u)
	if g != nil {
		targets(u, &g.Addresses, &g.Targets)
	}
	return g
}

// nodeAddrs are the accepted addresses of a node.
type nodeAddrs struct{ internal, external []netip.Addr }

// expand returns the names of a Service: its own, and those of its endpoints with host names.
func (s *service) expand(of []*slice, nodes map[string]nodeAddrs) (all []names.Object) {
	own := s.Object
	if s.nodePort {
		own.Addresses = s.nodeAddresses(of, nodes)
	}
	byHost := map[string][]netip.Addr{}
	if s.headless {
		for _, sl := range of {
			for _, e := range sl.endpoints {
				if e.ready || s.notReady {
					addrs := s.endpointAddresses(e, nodes)
					own.Addresses = append(own.Addresses, addrs...)
					byHost[e.hostname] = append(byHost[e.hostname], addrs...)
				}
			}
		}
	}
	all = append(all, tidy(own))
	delete(byHost, "")
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		o := own
		o.Hostnames, o.Addresses = nil, byHost[host]
		for _, name := range own.Hostnames {
			if !strings.HasPrefix(name, "*.") {
				o.Hostnames = append(o.Hostnames, host+"."+name)
			}
		}
		all = append(all, tidy(o))
	}
	if len(s.internal) > 0 {
		o := own
		o.Hostnames, o.Addresses, o.Targets = s.internal, s.clusterIPs, nil
		all = append(all, tidy(o))
	}
	return all
}

// tidy sorts the addresses, so that the same ones count if there are too many.
func tidy(o names.Object) names.Object {
	o.Addresses = slices.Clone(o.Addresses)
	slices.SortFunc(o.Addresses, netip.Addr.Compare)
	o.Addresses = slices.Compact(o.Addresses)
	return o
}

// endpointAddresses returns the address of an endpoint, or those of its node.
func (s *service) endpointAddresses(e endpoint, nodes map[string]nodeAddrs) []netip.Addr {
	switch s.endpointsType {
	case "NodeExternalIP":
		return nodes[e.node].external
	case "HostIP":
		return nodes[e.node].internal
	}
	return []netip.Addr{e.addr}
}

// nodeAddresses returns the addresses of a NodePort: ExternalIPs, or InternalIPs if no node has any.
func (s *service) nodeAddresses(of []*slice, nodes map[string]nodeAddrs) []netip.Addr {
	var internal, external []netip.Addr
	for name, n := range nodes {
		with := func(sl *slice) bool {
			return slices.ContainsFunc(sl.endpoints, func(e endpoint) bool { return e.ready && e.node == name })
		}
		if s.local && !slices.ContainsFunc(of, with) {
			continue
		}
		internal, external = append(internal, n.internal...), append(external, n.external...)
	}
	switch {
	case s.access == "private":
		return internal
	case s.access == "public" || len(external) > 0:
		return external
	}
	return internal
}
