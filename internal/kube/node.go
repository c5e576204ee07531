package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/fairway-net/fairway/internal/api"
)

// taintToBeDeleted is the taint that the cluster autoscaler sets before it removes the machine. Load balancers must use
// another node by then (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// A Node is a Kubernetes node with the parts that the agent needs. It is immutable.
type Node struct {
	Name    string
	Zone    string // label topology.kubernetes.io/zone; empty: no zone
	Created time.Time
	// Addrs are the node's own addresses: InternalIPs, then ExternalIPs. The first address of each family is the best.
	Addrs []netip.Addr
	// Internal is the number of InternalIPs in Addrs.
	Internal int
	// PodCIDRs are the ranges of its pods' addresses; empty until the cluster assigns ranges.
	PodCIDRs []netip.Prefix
	// WireGuardKey is the annotation AnnotationWireGuardKey; empty: no key.
	WireGuardKey string
	// Eligible says that load balancers may send traffic to the node: it is not about to be deleted.
	Eligible bool
	// Drained says that the node has the label of `fairway drain`.
	Drained bool
	// NetworkUnavailable says that the condition of this name is true.
	NetworkUnavailable bool
	// Problems are the invalid parts of the object, which were left out.
	Problems []api.Problem
}

// Equal reports whether n and o are equal.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.Created.Equal(o.Created) && n.Eligible == o.Eligible &&
		n.Drained == o.Drained && n.NetworkUnavailable == o.NetworkUnavailable && slices.Equal(n.Addrs, o.Addrs) && n.Internal == o.Internal && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		n.WireGuardKey == o.WireGuardKey && slices.Equal(n.Problems, o.Problems)
}

// Primary returns the node's first address of each family, the node's main family first. nodePortAddresses "primary"
// means these addresses.
func (n Node) Primary() []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Addrs {
		if !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// ConvertNode converts a Node to the parts that the agent needs.
func ConvertNode(o *corev1.Node) Node {
	var bad Problems
	n := Node{
		Name: o.Name,
		Zone: o.Labels[corev1.LabelTopologyZone], Created: o.CreationTimestamp.Time,
		WireGuardKey: o.Annotations[AnnotationWireGuardKey],
		Drained:      labelledOff(o), NetworkUnavailable: NetworkUnavailable(o) != "",
		Eligible: o.DeletionTimestamp == nil && !slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == taintToBeDeleted
		}),
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range o.Status.Addresses {
			if a.Type != kind {
				continue
			}
			ip, err := ParseAddr(a.Address)
			if err != nil {
				bad.Add(reasonAddress, "%s %v; it is left out", kind, err)
				continue
			}
			if n.Addrs = append(n.Addrs, ip); kind == corev1.NodeInternalIP {
				n.Internal++
			}
		}
	}
	if many := len(n.Addrs); many > api.MaxNodeAddrs {
		bad.Add(reasonAddress, "%d addresses are more than %d; the others are left out", many, api.MaxNodeAddrs)
		n.Addrs = slices.Clone(n.Addrs[:api.MaxNodeAddrs])
		n.Internal = min(n.Internal, api.MaxNodeAddrs)
	}
	n.PodCIDRs = podCIDRs(o, &bad)
	n.Problems = bad
	return n
}

func podCIDRs(o *corev1.Node, bad *Problems) []netip.Prefix {
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 && o.Spec.PodCIDR != "" {
		texts = []string{o.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range texts {
		p, ok := ParsePrefix(text)
		if !ok {
			bad.Add(reasonAddress, "podCIDR %q is not an address range; it is left out", text)
			continue
		}
		out = append(out, p)
	}
	return out
}

// Excluded returns the reason why load balancers must not use a node; empty: they may use it. A cordoned node takes no
// new pods, but serves.
func Excluded(o *corev1.Node) string {
	if labelledOff(o) {
		return "it has the label " + corev1.LabelNodeExcludeBalancers
	}
	if o.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, t := range o.Spec.Taints {
		if why := leavingTaints[t.Key]; why != "" {
			return why + " (taint " + t.Key + ")"
		}
	}
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue:
			return "its network is not available (condition NetworkUnavailable)"
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shutdownMessage):
			return "it is shutting down (condition Ready)"
		}
	}
	return ""
}

// labelledOff reports whether a node has the label of `fairway drain`.
func labelledOff(o *corev1.Node) bool {
	value, ok := o.Labels[corev1.LabelNodeExcludeBalancers]
	out, err := strconv.ParseBool(value)
	return ok && (err != nil || out)
}

// NetworkUnavailable returns the message of a node's condition NetworkUnavailable if it is true, and "" otherwise. New
// pods stay away from such a node.
func NetworkUnavailable(o *corev1.Node) string {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			return api.Cut(strings.Join(strings.Fields(cmp.Or(c.Message, c.Reason, "no reason is given")), " "), maxCondition)
		}
	}
	return ""
}

// maxCondition limits the message of a condition, which its writer chooses, in bytes.
const maxCondition = 200

// shutdownMessage is the kubelet's message in the condition Ready before its node shuts down. The kubelet sets no taint
// in this case.
const shutdownMessage = "node is shutting down"

// leavingTaints are the taints of nodes that are going away or are off.
var leavingTaints = map[string]string{
	taintToBeDeleted:                            "the cluster autoscaler removes it",
	corev1.TaintNodeOutOfService:                "it is out of service",
	"node.cloudprovider.kubernetes.io/shutdown": "it is shut down",
}

// ParsePrefix reads a range as the API server does (see ParseAddr), and clears the bits after the prefix length.
func ParsePrefix(text string) (netip.Prefix, bool) {
	_, ipnet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	ip, _ := netip.AddrFromSlice(ipnet.IP)
	bits, _ := ipnet.Mask.Size()
	// A range of mapped IPv4 addresses has more bits than IPv4 has, and is refused for that reason.
	p := netip.PrefixFrom(ip.Unmap(), bits)
	return p.Masked(), p.IsValid()
}
