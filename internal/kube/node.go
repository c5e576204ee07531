package kube

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/fairway-net/fairway/internal/api"
)

// taintToBeDeleted is put on a node by the cluster autoscaler before it removes the
// machine: load balancers must use another one by then (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// maxNodeAddrs are the addresses of a node that count: every other node looks at each, and a kubelet may
// write as many into its node's status as the API server takes.
const maxNodeAddrs = 64

// A Node is what the agent needs to know of a Kubernetes node. It is immutable.
type Node struct {
	Name    string
	Zone    string // its label topology.kubernetes.io/zone; empty: none
	Created time.Time
	// Addrs are the node's own addresses, the best one of each family first: its
	// InternalIPs, then its ExternalIPs.
	Addrs []netip.Addr
	// PodCIDRs are what its pods' addresses are taken from; empty until the cluster
	// has given it any.
	PodCIDRs []netip.Prefix
	// WireGuardKey is its annotation AnnotationWireGuardKey; empty: none.
	WireGuardKey string
	// Eligible: load balancers may send it traffic: it is not about to be
	// deleted.
	Eligible bool
	// Problems are the parts of the object that made no sense and were left out.
	Problems []api.Problem
}

// Equal reports whether n and o say the same.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.Created.Equal(o.Created) && n.Eligible == o.Eligible &&
		slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		n.WireGuardKey == o.WireGuardKey && slices.Equal(n.Problems, o.Problems)
}

// Primary returns the node's first address of each family: at most two, the node's
// main family first. It is what nodePortAddresses "primary" stands for.
func (n Node) Primary() []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Addrs {
		if !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// ConvertNode cuts a Node to what the agent needs.
func ConvertNode(o *corev1.Node) Node {
	var bad problems
	n := Node{
		Name: o.Name,
		Zone: o.Labels[corev1.LabelTopologyZone], Created: o.CreationTimestamp.Time,
		WireGuardKey: o.Annotations[AnnotationWireGuardKey],
		Eligible: o.DeletionTimestamp == nil && !slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == taintToBeDeleted
		}),
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range o.Status.Addresses {
			if a.Type != kind {
				continue
			}
			ip, err := parseAddr(a.Address)
			if err != nil {
				bad.add(reasonAddress, "%s %v; it is left out", kind, err)
				continue
			}
			n.Addrs = append(n.Addrs, ip)
		}
	}
	if many := len(n.Addrs); many > maxNodeAddrs {
		bad.add(reasonAddress, "%d addresses are more than %d; the others are left out", many, maxNodeAddrs)
		n.Addrs = slices.Clone(n.Addrs[:maxNodeAddrs])
	}
	n.PodCIDRs = podCIDRs(o, &bad)
	n.Problems = bad
	return n
}

func podCIDRs(o *corev1.Node, bad *problems) []netip.Prefix {
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 && o.Spec.PodCIDR != "" {
		texts = []string{o.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range texts {
		p, ok := parsePrefix(text)
		if !ok {
			bad.add(reasonAddress, "podCIDR %q is not an address range; it is left out", text)
			continue
		}
		out = append(out, p)
	}
	return out
}

// parsePrefix reads a range as the API server does (see parseAddr) and clears the
// bits behind the prefix length.
func parsePrefix(text string) (netip.Prefix, bool) {
	_, ipnet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	ip, _ := netip.AddrFromSlice(ipnet.IP)
	bits, _ := ipnet.Mask.Size()
	// A range of mapped IPv4 addresses comes out with more bits than IPv4 has, and is
	// refused for that.
	p := netip.PrefixFrom(ip.Unmap(), bits)
	return p.Masked(), p.IsValid()
}
