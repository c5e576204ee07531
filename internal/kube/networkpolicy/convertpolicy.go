package networkpolicy

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// ConvertPolicy converts a NetworkPolicy to the model. The API server has checked it and filled in the defaults. A part
// that is invalid nevertheless allows nothing: a policy must not open traffic that its author meant to close.
func ConvertPolicy(o *networkingv1.NetworkPolicy) *networkpolicy.Policy {
	p := &networkpolicy.Policy{Name: api.Name{Namespace: o.Namespace, Name: o.Name}, UID: string(o.UID), Selector: *policySelector(&o.Spec.PodSelector)}
	kube.Intern(&p.Name.Namespace)
	p.Isolates[networkpolicy.Ingress] = len(o.Spec.PolicyTypes) == 0 || slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	p.Isolates[networkpolicy.Egress] = len(o.Spec.PolicyTypes) == 0 && len(o.Spec.Egress) > 0 || slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	for _, r := range o.Spec.Ingress {
		p.Rules[networkpolicy.Ingress] = append(p.Rules[networkpolicy.Ingress], policyRule(r.From, r.Ports))
	}
	for _, r := range o.Spec.Egress {
		p.Rules[networkpolicy.Egress] = append(p.Rules[networkpolicy.Egress], policyRule(r.To, r.Ports))
	}
	return p
}

func policyRule(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) (r networkpolicy.Rule) {
	for _, o := range peers {
		if p, ok := policyPeer(o); ok {
			r.Peers = append(r.Peers, p)
		}
	}
	for _, o := range ports {
		if p, ok := policyPort(o); ok {
			r.Ports = append(r.Ports, p)
		}
	}
	r.NoPeer = len(peers) > 0 && len(r.Peers) == 0
	r.NoPort = len(ports) > 0 && len(r.Ports) == 0
	return r
}

func policyPeer(o networkingv1.NetworkPolicyPeer) (p networkpolicy.Peer, ok bool) {
	if o.IPBlock != nil {
		if p.Block, ok = policyBlock(o.IPBlock); !ok || o.PodSelector != nil || o.NamespaceSelector != nil {
			return p, false
		}
		return p, true
	}
	if o.PodSelector != nil {
		p.Pods = policySelector(o.PodSelector)
	}
	if o.NamespaceSelector != nil {
		p.Namespaces = policySelector(o.NamespaceSelector)
	}
	return p, p.Pods != nil || p.Namespaces != nil
}

func policyBlock(o *networkingv1.IPBlock) (*networkpolicy.Block, bool) {
	cidr, ok := kube.ParsePrefix(o.CIDR)
	b := &networkpolicy.Block{CIDR: cidr}
	for _, text := range o.Except {
		e, parsed := kube.ParsePrefix(text)
		b.Except = append(b.Except, e)
		ok = ok && parsed
	}
	return b, ok
}

func policyPort(o networkingv1.NetworkPolicyPort) (p networkpolicy.Port, ok bool) {
	p.Proto = api.TCP
	if o.Protocol != nil {
		var err error
		if p.Proto, err = api.ParseProto(string(*o.Protocol)); err != nil {
			return p, false
		}
	}
	switch {
	case o.Port == nil:
		p.Last = 65535
	case o.Port.Type == intstr.String:
		p.Name = o.Port.StrVal
		return p, p.Name != ""
	default:
		last := o.Port.IntVal
		if o.EndPort != nil {
			last = *o.EndPort
		}
		if o.Port.IntVal < 0 || last > 65535 || last < o.Port.IntVal {
			return p, false
		}
		p.First, p.Last = uint16(o.Port.IntVal), uint16(last)
	}
	return p, true
}

// policySelector reads a selector. An invalid requirement matches nothing.
func policySelector(o *metav1.LabelSelector) *api.Selector {
	s := kube.ReadSelector("", o, &kube.Problems{})
	return &s
}
