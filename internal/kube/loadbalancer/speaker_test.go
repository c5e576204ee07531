package loadbalancer

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExcluded: the nodes that load balancers must not use. A cordon is not a drain.
func TestExcluded(t *testing.T) {
	label := func(value string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: value} }
	}
	taint := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, message string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: kind, Status: status, Message: message}}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		why    string // empty means that the node is used
	}{
		"plain":                  {func(*corev1.Node) {}, ""},
		"label":                  {label(""), "the label"},
		"label true":             {label("true"), "the label"},
		"label false":            {label("false"), ""},
		"cordoned":               {func(n *corev1.Node) { n.Spec.Unschedulable = true }, ""},
		"cordoned, with a taint": {taint(corev1.TaintNodeUnschedulable), ""},
		"not ready":              {condition(corev1.NodeReady, corev1.ConditionFalse, "container runtime is down"), ""},
		"not heard":              {condition(corev1.NodeReady, corev1.ConditionUnknown, "Kubelet stopped posting node status."), ""},
		"shutting down":          {condition(corev1.NodeReady, corev1.ConditionFalse, "[container runtime is down, node is shutting down]"), "shutting down"},
		"without a network":      {condition(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, ""), "NetworkUnavailable"},
		"autoscaler":             {taint("ToBeDeletedByClusterAutoscaler"), "autoscaler"},
		"off, a cloud's":         {taint("node.cloudprovider.kubernetes.io/shutdown"), "shut down"},
		"off, by hand":           {taint(corev1.TaintNodeOutOfService), "out of service"},
		"being deleted":          {func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }, "being deleted"},
	} {
		n := &corev1.Node{}
		c.change(n)
		if got := convertAnnounceNode(n).Excluded; (got != "") != (c.why != "") || !strings.Contains(got, c.why) {
			t.Errorf("%s: excluded %q, want %q", name, got, c.why)
		}
	}
}
