package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// The reasons of the converters' problems.
const (
	reasonAddress  = "InvalidAddress"
	reasonPort     = "InvalidPort"
	reasonProtocol = "InvalidProtocol"
)

// Problems collects the parts that a converter leaves out, at most service.ProblemLimit.
type Problems []api.Problem

// Add adds a problem.
func (p *Problems) Add(reason, format string, args ...any) {
	*p = api.AddProblem(*p, reason, format, args...)
}

// ConvertService converts a Service to the model. Headless Services and Services of type ExternalName have no
// ClusterIPs and ports in the model, because a node does nothing for them.
func ConvertService(o *corev1.Service) *service.Service {
	svc := &service.Service{
		Name:          api.Name{Namespace: o.Namespace, Name: o.Name},
		Created:       Created(o.CreationTimestamp),
		ExternalLocal: o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal: o.Spec.InternalTrafficPolicy != nil &&
			*o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	var bad Problems
	svc.ClusterIPs = ClusterIPs(o, &bad)
	if len(svc.ClusterIPs) > 0 {
		svc.Ports = servicePorts(o.Spec.Ports, &bad)
		svc.Affinity = affinity(o.Spec)
		if p := o.Spec.HealthCheckNodePort; o.Spec.Type == corev1.ServiceTypeLoadBalancer && ValidPort(p) {
			svc.HealthCheckNodePort = uint16(p)
		}
		svc.ExternalIPs = addrs(o.Spec.ExternalIPs, "InvalidExternalIP", "externalIP", &bad)
		svc.BalancerIPs = servedIPs(o, &bad)
		svc.CheckedPorts = CheckedPorts(o.Status.LoadBalancer.Ingress)
		svc.OnNodes = OnNodes(o.Status.Conditions)
		svc.Sources = sourceRanges(o.Spec.LoadBalancerSourceRanges, &bad)
		annotations(o, svc, &bad)
	}
	svc.Problems = bad
	return svc
}

// Created returns the creation time, in seconds since 1970; 0: unknown.
func Created(t metav1.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(t.Unix(), 0)
}

// affinity returns the time that a client stays at its endpoint; 0: no affinity.
func affinity(spec corev1.ServiceSpec) time.Duration {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	const day = 86400 // the API server's limit
	return time.Duration(min(max(seconds, 1), day)) * time.Second
}

// addrs reads addresses for outside clients.
func addrs(texts []string, reason, what string, bad *Problems) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		a, err := ParseAddr(text)
		if err != nil {
			bad.Add(reason, "%s %q is left out: %v", what, text, err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// BalancerIPs returns the addresses to which a load balancer sends packets unchanged. A load balancer of mode Proxy
// replaces the destination by a node's or a pod's address. Packets to its own address are still on their way to it, so
// the node must not catch them (KEP-1860).
func BalancerIPs(ingress []corev1.LoadBalancerIngress, bad *Problems) []netip.Addr {
	var texts []string
	for _, i := range ingress {
		if i.IP != "" && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
			texts = append(texts, i.IP)
		}
	}
	return addrs(texts, "InvalidLoadBalancerIP", "load balancer address", bad)
}

// CheckedPorts returns the ports that all addresses of a load balancer list without an error.
func CheckedPorts(ingress []corev1.LoadBalancerIngress) []service.CheckedPort {
	var out []service.CheckedPort
	for i, in := range ingress {
		var named []service.CheckedPort
		for _, p := range in.Ports {
			if proto, err := api.ParseProto(string(p.Protocol)); err == nil && p.Error == nil && ValidPort(p.Port) {
				named = append(named, service.CheckedPort{Proto: proto, Port: uint16(p.Port)})
			}
		}
		if i == 0 {
			out = named
			continue
		}
		out = slices.DeleteFunc(out, func(p service.CheckedPort) bool { return !slices.Contains(named, p) })
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// sourceRanges reads loadBalancerSourceRanges. White space around a range is allowed, as always in Kubernetes. If no
// range is valid, no client is allowed: an empty list would open the address to all clients.
func sourceRanges(texts []string, bad *Problems) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		p, ok := ParsePrefix(strings.TrimSpace(text))
		if !ok {
			bad.Add("InvalidSourceRange", "loadBalancerSourceRange %q is left out: it is not a CIDR", text)
			continue
		}
		out = append(out, p)
	}
	if len(out) == 0 && len(texts) > 0 {
		out = slices.Concat(service.NoClients(true), service.NoClients(false))
	}
	return out
}

// ClusterIPs reads the ClusterIPs of a Service, at most one of each family.
func ClusterIPs(o *corev1.Service, bad *Problems) []netip.Addr {
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	texts := o.Spec.ClusterIPs
	if len(texts) == 0 && o.Spec.ClusterIP != "" {
		texts = []string{o.Spec.ClusterIP} // an object from before the field ClusterIPs existed
	}
	var ips []netip.Addr
	for _, text := range texts {
		if text == "" || text == corev1.ClusterIPNone {
			continue
		}
		ip, err := ParseAddr(text)
		switch {
		case err != nil:
			bad.Add(reasonAddress, "clusterIP %v; it is left out", err)
		case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast():
			bad.Add(reasonAddress, "clusterIP %q cannot belong to a Service; it is left out", text)
		case slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == ip.Is4() }):
			bad.Add(reasonAddress, "clusterIP %q is the second of its family; it is left out", text)
		default:
			ips = append(ips, ip)
		}
	}
	return ips
}

// ParseAddr reads an address as the API server does. Old objects may hold IPv4 numbers with leading zeros, which the
// API server has always read as decimal (KEP-4858), and IPv4 addresses mapped into IPv6.
func ParseAddr(text string) (netip.Addr, error) {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	return ip.Unmap(), nil
}

func servicePorts(ports []corev1.ServicePort, bad *Problems) []service.Port {
	out := make([]service.Port, 0, len(ports))
	for _, p := range ports {
		proto, err := api.ParseProto(string(p.Protocol))
		if err != nil {
			bad.Add(reasonProtocol, "port %q: %v; it is left out", p.Name, err)
			continue
		}
		if !ValidPort(p.Port) {
			bad.Add(reasonPort, "port %q has the number %d, which is not in 1-65535; it is left out", p.Name, p.Port)
			continue
		}
		q := service.Port{Name: p.Name, Proto: proto, Port: uint16(p.Port)}
		switch {
		case ValidPort(p.NodePort):
			q.NodePort = uint16(p.NodePort)
		case p.NodePort != 0:
			bad.Add(reasonPort, "port %q has the nodePort %d, which is not in 1-65535; the port gets no nodePort", p.Name, p.NodePort)
		}
		out = append(out, q)
	}
	return out
}

// ValidPort reports whether n is the number of a port.
func ValidPort(n int32) bool { return n > 0 && n <= 65535 }

// ConvertSlice converts an EndpointSlice to the model. Slices of type FQDN have no endpoints in the model, because a
// node cannot send packets to a name. The field Service has an empty name if the slice belongs to no Service.
func ConvertSlice(o *discoveryv1.EndpointSlice) *service.Slice {
	s := &service.Slice{Name: api.Name{Namespace: o.Namespace, Name: o.Name}}
	if name := o.Labels[discoveryv1.LabelServiceName]; name != "" {
		s.Service = api.Name{Namespace: o.Namespace, Name: name}
	}
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return s
	}
	var bad Problems
	s.Ports = slicePorts(o, &bad)
	var pods []string
	s.Endpoints, pods = sliceEndpoints(o, &bad)
	s.Pods = service.PackPodNames(pods)
	s.Problems = bad
	return s
}

// slicePorts leaves out ports without a number. In the API they mean "all ports", which no Service port matches.
func slicePorts(o *discoveryv1.EndpointSlice, bad *Problems) []service.SlicePort {
	out := make([]service.SlicePort, 0, len(o.Ports))
	for _, p := range o.Ports {
		if p.Port == nil || *p.Port == 0 {
			continue
		}
		name := deref(p.Name, "")
		if !ValidPort(*p.Port) {
			bad.Add(reasonPort, "EndpointSlice %s: port %q has the number %d, which is not in 1-65535; it is left out", o.Name, name, *p.Port)
			continue
		}
		proto, err := api.ParseProto(string(deref(p.Protocol, "")))
		if err != nil {
			bad.Add(reasonProtocol, "EndpointSlice %s: port %q: %v; it is left out", o.Name, name, err)
			continue
		}
		out = append(out, service.SlicePort{Name: name, Proto: proto, Port: uint16(*p.Port)})
	}
	return out
}

// sliceEndpoints returns the endpoints sorted by address, and the names of their pods.
func sliceEndpoints(o *discoveryv1.EndpointSlice, bad *Problems) ([]service.SliceEndpoint, []string) {
	type endpoint struct {
		service.SliceEndpoint
		pod string
	}
	all := make([]endpoint, 0, len(o.Endpoints))
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			bad.Add(reasonAddress, "EndpointSlice %s: an endpoint has no address; it is left out", o.Name)
			continue
		}
		// In the API, all addresses of an endpoint are equivalent, and consumers should use the first address only.
		addr, err := endpointAddr(o.AddressType, e.Addresses[0])
		if err != nil {
			bad.Add(reasonAddress, "EndpointSlice %s: endpoint %v; it is left out", o.Name, err)
			continue
		}
		ep := service.SliceEndpoint{
			Addr:        addr,
			Node:        deref(e.NodeName, ""),
			Ready:       deref(e.Conditions.Ready, true),
			Serving:     deref(e.Conditions.Serving, true),
			Terminating: deref(e.Conditions.Terminating, false),
		}
		if e.Hints != nil {
			for _, n := range e.Hints.ForNodes {
				ep.NodeHints = append(ep.NodeHints, n.Name)
			}
			for _, z := range e.Hints.ForZones {
				ep.ZoneHints = append(ep.ZoneHints, z.Name)
			}
		}
		all = append(all, endpoint{ep, podName(o.Namespace, e.TargetRef)})
	}
	// The order does not depend on the EndpointSlice controller: a slice with reordered endpoints counts as unchanged,
	// and Compile sorts less.
	slices.SortStableFunc(all, func(a, b endpoint) int { return a.Addr.Compare(b.Addr) })
	out, pods := make([]service.SliceEndpoint, len(all)), make([]string, len(all))
	for i, e := range all {
		out[i], pods[i] = e.SliceEndpoint, e.pod
	}
	return out, pods
}

// podName returns the name of an endpoint's pod; empty: the endpoint refers to another kind of object, or to a pod of
// another namespace.
func podName(namespace string, ref *corev1.ObjectReference) string {
	if ref == nil || ref.Kind != "Pod" || ref.Namespace != "" && ref.Namespace != namespace {
		return ""
	}
	return ref.Name
}

// endpointAddr reads an endpoint's address. It refuses the special addresses that the API server refuses too: they
// would lead into the node itself, or to the metadata server of its provider.
func endpointAddr(kind discoveryv1.AddressType, text string) (netip.Addr, error) {
	ip, err := ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case kind != discoveryv1.AddressTypeIPv4 && kind != discoveryv1.AddressTypeIPv6:
		return netip.Addr{}, fmt.Errorf("%q: the addressType %q is none of IPv4, IPv6, FQDN", text, kind)
	case ip.Is4() != (kind == discoveryv1.AddressTypeIPv4):
		return netip.Addr{}, fmt.Errorf("%q is not of the addressType %s", text, kind)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%q cannot belong to a pod", text)
	}
	return ip, nil
}

// deref returns the value of p, or the default if p is nil.
func deref[T any](p *T, or T) T {
	if p == nil {
		return or
	}
	return *p
}
