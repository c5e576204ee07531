package kube

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
)

// A ServiceRange is a ServiceCIDR, which is a range of ClusterIPs (KEP-1880).
type ServiceRange struct{ prefixes []netip.Prefix }

func rangesKind(c kubernetes.Interface) Kind[*networkingv1.ServiceCIDR, ServiceRange] {
	return Kind[*networkingv1.ServiceCIDR, ServiceRange]{
		Name: "servicecidrs", Object: &networkingv1.ServiceCIDR{}, Client: From(c.NetworkingV1().ServiceCIDRs()),
		Trim: func(o *networkingv1.ServiceCIDR) *ServiceRange {
			r := &ServiceRange{}
			for _, text := range o.Spec.CIDRs {
				if p, ok := ParsePrefix(text); ok { // the API server has validated it
					r.prefixes = append(r.prefixes, p)
				}
			}
			return r
		},
		Without: "packets to ClusterIPs that no Service has are passed on",
	}
}

// APIServerService is the API server's own Service in every cluster. Its endpoints are the API servers' addresses.
var APIServerService = api.Name{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// APIServers returns the addresses of the API server: the ClusterIPs and endpoints of its Service.
func (s *Store) APIServers() []netip.Addr {
	var all []netip.Addr
	if r, ok := s.services.Get(APIServerService); ok {
		all = append(all, r.ClusterIPs...)
	}
	for _, slice := range s.slices.Of(APIServerService) {
		for _, e := range slice.Endpoints {
			all = append(all, e.Addr)
		}
	}
	return all
}

// NodeAddrs returns the addresses of all nodes that are watched.
func (s *Store) NodeAddrs() []netip.Addr {
	var all []netip.Addr
	for _, n := range s.nodes.All() {
		all = append(all, n.Addrs...)
	}
	return all
}

// ServiceCIDRs returns the ranges of ClusterIPs, sorted. It returns no ranges before Kubernetes 1.33, or without the
// right to read them.
func (s *Store) ServiceCIDRs() []netip.Prefix {
	var all []netip.Prefix
	for _, r := range s.ranges.All() {
		all = append(all, r.prefixes...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
