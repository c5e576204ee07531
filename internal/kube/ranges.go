package kube

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
)

// serviceRange is a ServiceCIDR: what ClusterIPs are taken from (KEP-1880).
type serviceRange struct{ prefixes []netip.Prefix }

func rangesKind(c kubernetes.Interface) kind[*networkingv1.ServiceCIDR, serviceRange] {
	return kind[*networkingv1.ServiceCIDR, serviceRange]{
		name: "servicecidrs", object: &networkingv1.ServiceCIDR{}, client: from(c.NetworkingV1().ServiceCIDRs()),
		trim: func(o *networkingv1.ServiceCIDR) *serviceRange {
			r := &serviceRange{}
			for _, text := range o.Spec.CIDRs {
				if p, ok := parsePrefix(text); ok { // the API server has checked it
					r.prefixes = append(r.prefixes, p)
				}
			}
			return r
		},
		without: "packets to ClusterIPs that no Service has are passed on",
	}
}

// apiServerService is the Service of the API server in every cluster: its endpoints are
// where the API server listens.
var apiServerService = api.Name{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// APIServers returns the addresses at which the API server is reached: the ClusterIPs and
// the endpoints of its Service.
func (s *Store) APIServers() []netip.Addr {
	var all []netip.Addr
	if r, ok := s.services.Get(apiServerService); ok {
		all = append(all, r.ClusterIPs...)
	}
	for _, slice := range s.slices.Of(apiServerService) {
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

// ServiceCIDRs returns what ClusterIPs are taken from, sorted; none where the API server
// does not say (before Kubernetes 1.33, or without the right to read it).
func (s *Store) ServiceCIDRs() []netip.Prefix {
	var all []netip.Prefix
	for _, r := range s.ranges.All() {
		all = append(all, r.prefixes...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
