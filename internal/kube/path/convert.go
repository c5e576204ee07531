package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
)

// dnsLabel is on the Service with the cluster's DNS address, in all distributions.
const dnsLabel, dnsValue = "k8s-app", "kube-dns"

// Cluster converts the objects. facts returns the facts for the table of a node, as its agent has them; Cluster adds
// those that come from other objects.
func (o *Objects) Cluster(facts func(kube.Node) service.Node) *path.Cluster {
	c := &path.Cluster{
		Services: map[api.Name]*path.Service{}, Slices: map[api.Name][]*service.Slice{},
		Pods: map[api.Name]*path.Pod{}, Nodes: map[string]*path.Node{}, Policies: networkpolicy.NewCluster(),
	}
	o.addNodes(c, facts)
	for i := range o.Pods {
		p := convertPod(&o.Pods[i], c)
		c.Pods[p.Name], c.Policies.Pods[p.Name] = p, p.Pod
	}
	for i := range o.Services {
		s := convertService(&o.Services[i])
		c.Services[s.Name] = s
	}
	for i := range o.Slices {
		s := kube.ConvertSlice(&o.Slices[i])
		if s.Service.Name != "" {
			kube.ReadWeights(&o.Slices[i], s)
			c.Slices[s.Service] = append(c.Slices[s.Service], s)
		}
	}
	for _, all := range c.Slices {
		slices.SortFunc(all, func(a, b *service.Slice) int { return a.Name.Compare(b.Name) })
	}
	o.addPolicies(c)
	return c
}

func (o *Objects) addNodes(c *path.Cluster, facts func(kube.Node) service.Node) {
	var ranges []netip.Prefix
	for _, r := range o.Ranges {
		for _, text := range r.Spec.CIDRs {
			if p, ok := kube.ParsePrefix(text); ok {
				ranges = append(ranges, p)
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	var addrs []netip.Addr
	for i := range o.Nodes {
		addrs = append(addrs, kube.ConvertNode(&o.Nodes[i]).Addrs...)
	}
	for i := range o.Nodes {
		n := kube.ConvertNode(&o.Nodes[i])
		f := facts(n)
		f.Name, f.Zone = n.Name, n.Zone
		f.Settings.ServiceCIDRs = slices.Compact(slices.Clone(ranges))
		f.NodeAddrs = service.NewAddrSet(slices.Concat(addrs, f.NodeAddrs)...)
		c.Nodes[n.Name] = &path.Node{
			Name: n.Name, Addrs: n.Addrs, PodCIDRs: n.PodCIDRs, Facts: service.Facts{Node: f}, Unavailable: kube.NetworkUnavailable(&o.Nodes[i]),
		}
		c.Policies.Nodes[n.Name] = &networkpolicy.Node{Name: n.Name, Labels: o.Nodes[i].Labels, Addrs: n.Addrs}
	}
}

func (o *Objects) addPolicies(c *path.Cluster) {
	for i := range o.Namespaces {
		n := &o.Namespaces[i]
		c.Policies.Namespaces[n.Name] = &api.Namespace{Name: n.Name, Labels: n.Labels, Terminating: n.DeletionTimestamp != nil}
	}
	for name := range c.Pods { // manifests may lack the namespaces
		if c.Policies.Namespaces[name.Namespace] == nil {
			c.Policies.Namespaces[name.Namespace] = &api.Namespace{Name: name.Namespace, Labels: map[string]string{corev1.LabelMetadataName: name.Namespace}}
		}
	}
	for i := range o.Policies {
		p := kubepolicy.ConvertPolicy(&o.Policies[i])
		c.Policies.Policies[p.Name] = p
	}
	for i := range o.ClusterPolicies {
		p := kubepolicy.ConvertClusterPolicy(&o.ClusterPolicies[i])
		c.Policies.ClusterPolicies[o.ClusterPolicies[i].GetName()] = p
	}
}

func convertService(o *corev1.Service) *path.Service {
	s := &path.Service{
		Service: kube.ConvertService(o), Type: string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)), Selector: o.Spec.Selector,
		Headless:   o.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(o.Spec.ClusterIPs, corev1.ClusterIPNone),
		ClusterDNS: o.Namespace == "kube-system" && o.Labels[dnsLabel] == dnsValue && o.Spec.ClusterIP != corev1.ClusterIPNone,
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.ExternalName = o.Spec.ExternalName
	}
	for _, x := range o.Spec.Ports {
		proto, err := api.ParseProto(string(x.Protocol))
		if err != nil || !kube.ValidPort(x.Port) {
			continue
		}
		p := path.ServicePort{Port: service.Port{Name: x.Name, Proto: proto, Port: uint16(x.Port)}, Target: uint16(x.Port)}
		if kube.ValidPort(x.NodePort) {
			p.NodePort = uint16(x.NodePort)
		}
		switch {
		case x.TargetPort.Type == intstr.String:
			p.TargetName = x.TargetPort.StrVal
		case kube.ValidPort(x.TargetPort.IntVal):
			p.Target = uint16(x.TargetPort.IntVal)
		}
		s.Ports = append(s.Ports, p)
	}
	for _, i := range o.Status.LoadBalancer.Ingress {
		if a, err := kube.ParseAddr(i.IP); err == nil && i.IPMode != nil && *i.IPMode == corev1.LoadBalancerIPModeProxy {
			s.ProxyIPs = append(s.ProxyIPs, a)
		}
	}
	return s
}

func convertPod(o *corev1.Pod, c *path.Cluster) *path.Pod {
	p := &path.Pod{
		Pod: kube.ConvertPolicyPod(o), Phase: string(o.Status.Phase), Deleting: o.DeletionTimestamp != nil,
		Finished: o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,
	}
	if p.HostNetwork {
		if n := c.Nodes[p.Node]; n != nil {
			p.NodeAddrs = n.Addrs
		}
	}
	for _, x := range o.Status.Conditions {
		if x.Type == corev1.PodReady {
			p.Ready = x.Status == corev1.ConditionTrue
		}
	}
	for i := range o.Spec.Containers {
		p.Containers = append(p.Containers, convertContainer(&o.Spec.Containers[i], o.Status.ContainerStatuses))
	}
	p.Resolver = resolverOf(o)
	return p
}

func convertContainer(o *corev1.Container, states []corev1.ContainerStatus) path.Container {
	c := path.Container{Name: o.Name}
	for _, x := range o.Ports {
		if proto, err := api.ParseProto(string(x.Protocol)); err == nil && kube.ValidPort(x.ContainerPort) {
			c.Ports = append(c.Ports, api.NamedPort{Name: x.Name, Proto: proto, Number: uint16(x.ContainerPort)})
		}
	}
	if p := o.ReadinessProbe; p != nil {
		c.HasProbe, c.Probe = true, probeText(p)
	}
	for _, s := range states {
		if s.Name != o.Name {
			continue
		}
		c.Ready = s.Ready
		if s.State.Waiting != nil {
			c.Waiting = cmp.Or(s.State.Waiting.Reason, "waiting")
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if t != nil {
				c.Exited, c.ExitCode = true, t.ExitCode
			}
		}
		if s.State.Terminated != nil {
			c.Waiting = cmp.Or(s.State.Terminated.Reason, "ended")
		}
	}
	return c
}

// probeText describes a readiness probe.
func probeText(p *corev1.Probe) string {
	switch {
	case p.HTTPGet != nil:
		return fmt.Sprintf("HTTP :%s%s", p.HTTPGet.Port.String(), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		return "TCP :" + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return fmt.Sprintf("gRPC :%d", p.GRPC.Port)
	}
	return "a command"
}

// resolverOf returns what the kubelet writes into the pod's resolv.conf. The search domains of the node are not known.
func resolverOf(o *corev1.Pod) path.Resolver {
	r := path.Resolver{Ndots: 1}
	policy := cmp.Or(o.Spec.DNSPolicy, corev1.DNSClusterFirst)
	if policy == corev1.DNSClusterFirstWithHostNet || policy == corev1.DNSClusterFirst && !o.Spec.HostNetwork {
		r.Cluster, r.Ndots = true, 5
		r.Search = []string{o.Namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}
	}
	if d := o.Spec.DNSConfig; d != nil {
		r.Search = append(r.Search, d.Searches...)
		for _, x := range d.Options {
			var n int
			if x.Name == "ndots" && x.Value != nil {
				if _, err := fmt.Sscan(*x.Value, &n); err == nil {
					r.Ndots = n
				}
			}
		}
	}
	return r
}
