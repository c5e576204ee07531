package networkpolicy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Selectors select the same objects as Kubernetes' own, and selectors with the same text select the same objects.
func TestSelectorsAsKubernetes(t *testing.T) {
	r := testnet.Random(t)
	some := func() string { return string(rune('a' + r.IntN(3))) }
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	texts := map[string]labels.Selector{}
	selected := 0
	for range 5000 {
		o := &metav1.LabelSelector{MatchLabels: map[string]string{}}
		for range r.IntN(2) {
			o.MatchLabels[some()] = some()
		}
		for range r.IntN(3) {
			e := metav1.LabelSelectorRequirement{Key: some(), Operator: operators[r.IntN(4)]}
			if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
				e.Values = []string{some(), some()}
			}
			o.MatchExpressions = append(o.MatchExpressions, e)
		}
		theirs, err := metav1.LabelSelectorAsSelector(o)
		if err != nil {
			t.Fatal(err)
		}
		ours := policySelector(o)
		if was, ok := texts[ours.String()]; ok && was.String() != theirs.String() {
			// Kubernetes writes a repeated requirement twice.
			t.Logf("%s stands for %s and %s", ours, was, theirs)
		} else {
			texts[ours.String()] = theirs
		}
		for range 20 {
			set := labels.Set{}
			for range r.IntN(4) {
				set[some()] = some()
			}
			got, want := ours.Matches(set), theirs.Matches(set)
			if got != want {
				t.Fatalf("%s and %v: %v, Kubernetes %s %v", ours, set, got, theirs, want)
			}
			if texts[ours.String()].Matches(set) != want {
				t.Fatalf("%s is the text of two selectors that differ for %v", ours, set)
			}
			if got {
				selected++
			}
		}
	}
	if selected < 1000 {
		t.Errorf("%d of 100,000 were selected", selected)
	}
}

// An object that the API server would not accept allows nothing. A finished pod, or a pod on the node's network, has no
// address.
func TestPoliciesFailClosed(t *testing.T) {
	bad, proto := "10.0.0.0/99", corev1.Protocol("ICMP")
	p := ConvertPolicy(&networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{}}},
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: bad}}}},
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{bad}}}}},
		{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &proto}}},
	}}})
	if !p.Isolates[networkpolicy.Ingress] || p.Isolates[networkpolicy.Egress] {
		t.Errorf("without policyTypes: %v", p.Isolates)
	}
	for i, r := range p.Rules[networkpolicy.Ingress] {
		if !r.NoPeer && !r.NoPort {
			t.Errorf("rule %d allows something: %+v", i, r)
		}
	}
	ok := ConvertPolicy(&networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "010.0.0.1/8"}}}}}}})
	if b := ok.Rules[networkpolicy.Ingress][0].Peers[0].Block; b == nil || b.CIDR.String() != "10.0.0.0/8" {
		t.Errorf("a block with host bits and a leading zero: %+v", b)
	}
	pod := corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}}
	if got := kube.ConvertPolicyPod(&pod); len(got.Addrs) != 2 {
		t.Errorf("a running pod: %v", got.Addrs)
	}
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		finished := pod
		finished.Status.Phase = phase
		if got := kube.ConvertPolicyPod(&finished); len(got.Addrs) != 0 {
			t.Errorf("a pod that has %s: %v", phase, got.Addrs)
		}
	}
	pod.Spec.HostNetwork = true
	if got := kube.ConvertPolicyPod(&pod); len(got.Addrs) != 0 || !got.HostNetwork {
		t.Errorf("a pod on the node's network: %+v", got)
	}
}
