package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// A Destination is one endpoint of a port of a Service.
type Destination struct {
	Proto api.Proto
	Port  uint16     // of the Service
	Addr  netip.Addr // of the endpoint
	To    uint16     // the endpoint's port
}

// FindService returns the Service that a person means: by service/NAMESPACE/NAME, or by one of its addresses. It returns
// nil for another text, and an error if the named Service does not exist.
func FindService(ctx context.Context, client kubernetes.Interface, subject string) (*corev1.Service, error) {
	kind, name, _ := strings.Cut(subject, "/")
	if kind == "service" || kind == "svc" || kind == "services" {
		n, err := api.ParseName(name)
		if err != nil {
			return nil, fmt.Errorf("%q does not name a Service [write service/NAMESPACE/NAME]", subject)
		}
		s, err := client.CoreV1().Services(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no Service %v [kubectl get services -n %s lists those that are]", n, n.Namespace)
		}
		if err != nil {
			return nil, fmt.Errorf("get Service %v: %w", n, text.RequestError(err))
		}
		return s, nil
	}
	addr, err := netip.ParseAddr(subject)
	if err != nil {
		return nil, nil
	}
	all, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", text.RequestError(err))
	}
	at := slices.IndexFunc(all.Items, func(s corev1.Service) bool { return hasAddress(&s, addr.Unmap().String()) })
	if at < 0 {
		return nil, nil
	}
	return &all.Items[at], nil
}

func hasAddress(s *corev1.Service, addr string) bool {
	return slices.Contains(s.Spec.ClusterIPs, addr) || slices.Contains(s.Spec.ExternalIPs, addr) ||
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP == addr })
}

// WhyUnserved returns why no proxy of this kind serves a Service: an error for people, never nil.
func WhyUnserved(ctx context.Context, client kubernetes.Interface, name api.Name) error {
	s, err := client.CoreV1().Services(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Service %v [kubectl get services -n %s lists those that are]", name, name.Namespace)
	case err != nil:
		return fmt.Errorf("get Service %v: %w", name, text.RequestError(err))
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Errorf("service %v has the type ExternalName: no proxy serves it, and DNS answers its name with %s", name, s.Spec.ExternalName)
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return fmt.Errorf("service %v is headless: no proxy serves it, and DNS answers its name with the addresses of its pods", name)
	}
	if other, ok := s.Labels["service.kubernetes.io/service-proxy-name"]; ok {
		return fmt.Errorf("service %v belongs to the proxy %q, by its label service.kubernetes.io/service-proxy-name", name, other)
	}
	return fmt.Errorf("service %v has no ClusterIP yet [kubectl -n %s describe service %s]", name, name.Namespace, name.Name)
}

// Destinations returns the ready endpoints of a Service's ports, sorted. A port other than 0 selects the Service's port.
func Destinations(ctx context.Context, client kubernetes.Interface, s *corev1.Service, proto api.Proto, port uint16) ([]Destination, error) {
	list, err := client.DiscoveryV1().EndpointSlices(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", text.RequestError(err))
	}
	var all []Destination
	for _, p := range s.Spec.Ports {
		d := Destination{Port: uint16(p.Port)}
		if d.Proto, err = api.ParseProto(string(p.Protocol)); err != nil || port != 0 && (port != d.Port || proto != d.Proto) {
			continue
		}
		for i := range list.Items {
			all = append(all, d.in(&list.Items[i], p.Name)...)
		}
	}
	slices.SortFunc(all, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto), a.Addr.Compare(b.Addr), cmp.Compare(a.To, b.To))
	})
	if all = slices.Compact(all); len(all) == 0 {
		return nil, fmt.Errorf("service %s/%s has no ready endpoint for this port [fairway explain %s/%s says why]", s.Namespace, s.Name, s.Namespace, s.Name)
	}
	return all, nil
}

// in returns the ready endpoints of d's port in a slice.
func (d Destination) in(slice *discoveryv1.EndpointSlice, portName string) (all []Destination) {
	for _, p := range slice.Ports {
		if ptr.Deref(p.Name, "") != portName || p.Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if !ptr.Deref(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				d.Addr, d.To = addr, uint16(*p.Port)
				all = append(all, d)
			}
		}
	}
	return all
}

// AgentSettings returns the data of the ConfigMap with the agents' settings. It returns nil if the ConfigMap does not
// exist, or may not be read.
func AgentSettings(ctx context.Context, c Connection) (map[string]string, error) {
	client, err := Connect(c)
	if err != nil {
		return nil, err
	}
	conf, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "fairway-agent", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ConfigMap fairway-agent: %w", text.RequestError(err))
	}
	return conf.Data, nil
}
