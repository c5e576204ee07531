package kube

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes"
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
