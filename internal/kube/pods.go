package kube

import (
	"net/netip"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func podsKind(c kubernetes.Interface) Kind[*corev1.Pod, api.Pod] {
	return Kind[*corev1.Pod, api.Pod]{
		Name: "pods", Object: &corev1.Pod{}, Client: From(c.CoreV1().Pods(metav1.NamespaceAll)),
		Trim: ConvertPolicyPod,
	}
}

// ConvertPolicyPod converts a Pod to the model. Pods with equal labels share the strings.
func ConvertPolicyPod(o *corev1.Pod) *api.Pod {
	p := &api.Pod{
		Name: api.Name{Namespace: o.Namespace, Name: o.Name}, UID: string(o.UID), Node: o.Spec.NodeName,
		Created: o.CreationTimestamp.Time, HostNetwork: o.Spec.HostNetwork,
	}
	Intern(&p.Name.Namespace)
	Intern(&p.Node)
	if len(o.Labels) > 0 {
		p.Labels = make(map[string]string, len(o.Labels))
		for k, v := range o.Labels {
			p.Labels[unique.Make(k).Value()] = unique.Make(v).Value()
		}
	}
	finished := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	if p.HostNetwork || finished {
		return p
	}
	p.Addrs = podAddrs(o)
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.Ports = append(p.Ports, namedPorts(c.Ports)...)
		}
	}
	for _, c := range o.Spec.Containers {
		p.Ports = append(p.Ports, namedPorts(c.Ports)...)
	}
	return p
}

func podAddrs(o *corev1.Pod) (all []netip.Addr) {
	for _, ip := range o.Status.PodIPs {
		if a, err := ParseAddr(ip.IP); err == nil && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if a, err := ParseAddr(o.Status.PodIP); err == nil && len(all) == 0 {
		all = append(all, a)
	}
	return all
}

func namedPorts(ports []corev1.ContainerPort) (all []api.NamedPort) {
	for _, p := range ports {
		proto, err := api.ParseProto(string(p.Protocol))
		if err == nil && p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= 65535 {
			n := api.NamedPort{Name: p.Name, Proto: proto, Number: uint16(p.ContainerPort)}
			Intern(&n.Name)
			all = append(all, n)
		}
	}
	return all
}
