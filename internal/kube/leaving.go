package kube

import (
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionLeaving is the condition of a Service with nodes' own addresses (ServiceLB) that says which of them clients are
// not to use any more, and agents serve all the same: those of nodes whose last endpoint terminates. It is in the status,
// which nobody but the controller may write, and its message is the addresses.
const (
	conditionLeaving = "fairway.net/LeavingAddresses"
	reasonLeaving    = "EndpointsTerminate"
)

// leavingAddrs reads the condition.
func leavingAddrs(all []metav1.Condition) (addrs []netip.Addr) {
	for _, c := range all {
		if c.Type != conditionLeaving || c.Status != metav1.ConditionTrue {
			continue
		}
		for text := range strings.FieldsSeq(c.Message) {
			if a, err := parseAddr(text); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// conditions are those of a status that are ours; nil removes what was.
func (s balancerStatus) conditions() []metav1.Condition {
	if len(s.Leaving) == 0 {
		return nil
	}
	texts := make([]string, len(s.Leaving))
	for i, a := range s.Leaving {
		texts[i] = a.String()
	}
	return []metav1.Condition{{Type: conditionLeaving, Status: metav1.ConditionTrue, Reason: reasonLeaving, Message: strings.Join(texts, " "), LastTransitionTime: metav1.Time{Time: time.Now()}}}
}

// servedIPs are the addresses of a load balancer that a node serves: those that clients are told, and nodes' own that they are
// not told any more.
func servedIPs(o *corev1.Service, bad *problems) []netip.Addr {
	return append(balancerIPs(o.Status.LoadBalancer.Ingress, bad), leavingAddrs(o.Status.Conditions)...)
}
