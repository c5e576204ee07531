package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionLeaving is a condition of a Service with nodes' own addresses (ServiceLB). Its message lists the addresses
// that agents still serve and that new clients should not use: the addresses of nodes on which the last endpoint
// terminates. The condition is in the status, which only the controller may write.
const (
	ConditionLeaving = "fairway.net/LeavingAddresses"
	ReasonLeaving    = "EndpointsTerminate"
)

// ConditionOnNodes is a condition of a Service whose addresses are nodes' own (ServiceLB). Agents serve each address only
// on the node that has it, so no kubelet can name an address that other nodes then take.
const (
	ConditionOnNodes = "fairway.net/NodeAddresses"
	ReasonOnNodes    = "ServiceLB"
)

// OnNodes reads the condition.
func OnNodes(all []metav1.Condition) bool {
	return slices.ContainsFunc(all, func(c metav1.Condition) bool { return c.Type == ConditionOnNodes && c.Status == metav1.ConditionTrue })
}

// LeavingAddrs reads the condition.
func LeavingAddrs(all []metav1.Condition) (addrs []netip.Addr) {
	for _, c := range all {
		if c.Type != ConditionLeaving || c.Status != metav1.ConditionTrue {
			continue
		}
		for text := range strings.FieldsSeq(c.Message) {
			if a, err := ParseAddr(text); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// servedIPs returns the load-balancer addresses that a node serves: the published addresses, and the nodes' addresses
// that are no longer published.
func servedIPs(o *corev1.Service, bad *Problems) []netip.Addr {
	return append(BalancerIPs(o.Status.LoadBalancer.Ingress, bad), LeavingAddrs(o.Status.Conditions)...)
}
