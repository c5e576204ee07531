package peers

import (
	"maps"
	"slices"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/api"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestCyclonus compares the packets that NetworkPolicies allow with the matcher of cyclonus, for random clusters:
// POLICY_CASES=N packets from or to isolated pods.
func TestCyclonus(t *testing.T) {
	cases := int(number(t, "POLICY_CASES", 4_000))
	r := testnet.Random(t)
	done, allowed := 0, 0
	for done < cases {
		w := policytest.New(r)
		c := networkpolicy.New("here")
		for range 40 {
			w.Step(c)
		}
		oracle := newPolicyOracle(w, c)
		table, _ := c.Compile()
		for range 250 {
			p := networkpolicy.Packet{Src: w.Addr(), Dst: w.Addr(), Proto: []api.Proto{api.TCP, api.UDP, api.SCTP}[w.IntN(3)], Port: uint16(w.IntN(8))}
			traffic, ok := oracle.traffic(p)
			if !ok {
				continue
			}
			got, want := networkpolicy.Lookup(table, p), oracle.policies.IsTrafficAllowed(traffic)
			if got.Ingress.Isolated || got.Egress.Isolated {
				done++ // a packet of pods that no policy isolates is compared, and not counted
			}
			if (got.Ingress.Isolated || got.Egress.Isolated) && got.Allowed() {
				allowed++
			}
			if got.Ingress.Allows() != want.Ingress.IsAllowed() || got.Egress.Allows() != want.Egress.IsAllowed() {
				t.Fatalf("%+v: we say %+v, cyclonus ingress %v, egress %v\n%s\n%s", p, got, want.Ingress.IsAllowed(), want.Egress.IsAllowed(), traffic.Table(), oracle.policies.ExplainTable())
			}
		}
	}
	t.Logf("%d packets of isolated pods, %d of them allowed", done, allowed)
}

// A policyOracle is cyclonus' model of a World whose pods are all on one node.
type policyOracle struct {
	*policytest.World
	policies *matcher.Policy
}

// newPolicyOracle leaves out policies that the API server would refuse.
func newPolicyOracle(w *policytest.World, c *networkpolicy.Compiler) *policyOracle {
	return &policyOracle{w, matcher.BuildNetworkPolicies(false, completeWorld(w, c))}
}

// completeWorld gives each namespace an object and each pod this node, tells the Compiler, and
// returns the NetworkPolicies as the API server has them.
func completeWorld(w *policytest.World, c *networkpolicy.Compiler) (all []*networkingv1.NetworkPolicy) {
	for _, n := range []string{"x", "y", "z"} {
		if w.Namespaces[n] == nil {
			w.Namespaces[n] = &api.Namespace{Name: n}
			c.SetNamespace(n, w.Namespaces[n])
		}
	}
	for name, p := range w.Pods {
		here := *p
		here.Node = "here"
		w.Pods[name] = &here
		c.SetPod(name, &here)
	}
	for _, name := range slices.SortedFunc(maps.Keys(w.Policies), api.Name.Compare) {
		o := networkPolicy(w.Policies[name])
		if len(o.Spec.PolicyTypes) == 0 {
			c.SetPolicy(name, nil) // it isolates nobody; the API server would fill in a direction
			continue
		}
		c.SetPolicy(name, kubepolicy.ConvertPolicy(o))
		all = append(all, o)
	}
	return all
}

// traffic returns a packet for cyclonus. ok is false for a pod whose port has two names, which cyclonus does not
// support, and for a pod that sends to itself, which is always allowed.
func (o *policyOracle) traffic(p networkpolicy.Packet) (*matcher.Traffic, bool) {
	if p.Src.Is4() != p.Dst.Is4() || p.Src == p.Dst {
		return nil, false
	}
	t := &matcher.Traffic{Source: &matcher.TrafficPeer{IP: p.Src.String()}, Destination: &matcher.TrafficPeer{IP: p.Dst.String()},
		ResolvedPort: int(p.Port), Protocol: corev1.Protocol(p.Proto.String())}
	names := 0
	for _, pod := range o.Pods {
		for _, a := range pod.Addrs {
			internal := &matcher.InternalPeer{PodLabels: pod.Labels, Namespace: pod.Name.Namespace, NamespaceLabels: o.Namespaces[pod.Name.Namespace].Labels}
			if a == p.Src {
				t.Source.Internal = internal
			}
			if a != p.Dst {
				continue
			}
			t.Destination.Internal = internal
			for _, n := range pod.Ports {
				if n.Number == p.Port && n.Proto == p.Proto {
					t.ResolvedPortName = n.Name
					names++
				}
			}
		}
	}
	return t, names < 2
}

// networkPolicy is a policy as users write it.
func networkPolicy(p *networkpolicy.Policy) *networkingv1.NetworkPolicy {
	o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: p.Name.Namespace, Name: p.Name.Name}}
	o.Spec.PodSelector = *labelSelector(&p.Selector)
	if p.Isolates[networkpolicy.Ingress] {
		o.Spec.PolicyTypes = append(o.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if p.Isolates[networkpolicy.Egress] {
		o.Spec.PolicyTypes = append(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	for d := range p.Rules {
		for i := range p.Rules[d] {
			r := &p.Rules[d][i]
			if r.NoPeer || r.NoPort || !p.Isolates[d] {
				continue
			}
			if peers, ports := policyPeers(r.Peers), policyPorts(r.Ports); networkpolicy.Direction(d) == networkpolicy.Ingress {
				o.Spec.Ingress = append(o.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: ports})
			} else {
				o.Spec.Egress = append(o.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: ports})
			}
		}
	}
	return o
}

func policyPeers(all []networkpolicy.Peer) (out []networkingv1.NetworkPolicyPeer) {
	for _, p := range all {
		var o networkingv1.NetworkPolicyPeer
		if p.Block != nil {
			o.IPBlock = &networkingv1.IPBlock{CIDR: p.Block.CIDR.String()}
			for _, e := range p.Block.Except {
				o.IPBlock.Except = append(o.IPBlock.Except, e.String())
			}
		}
		if p.Pods != nil {
			o.PodSelector = labelSelector(p.Pods)
		}
		if p.Namespaces != nil {
			o.NamespaceSelector = labelSelector(p.Namespaces)
		}
		out = append(out, o)
	}
	return out
}

func policyPorts(all []networkpolicy.Port) (out []networkingv1.NetworkPolicyPort) {
	for _, p := range all {
		proto := corev1.Protocol(p.Proto.String())
		o := networkingv1.NetworkPolicyPort{Protocol: &proto}
		switch {
		case p.Name != "":
			port := intstr.FromString(p.Name)
			o.Port = &port
		case p.First == 0 && p.Last == 65535:
		default:
			port, last := intstr.FromInt32(int32(p.First)), int32(p.Last)
			if o.Port = &port; p.First != p.Last {
				o.EndPort = &last
			}
		}
		out = append(out, o)
	}
	return out
}

func labelSelector(s *api.Selector) *metav1.LabelSelector {
	operators := map[api.Operator]metav1.LabelSelectorOperator{api.In: metav1.LabelSelectorOpIn, api.NotIn: metav1.LabelSelectorOpNotIn,
		api.Exists: metav1.LabelSelectorOpExists, api.DoesNotExist: metav1.LabelSelectorOpDoesNotExist}
	o := &metav1.LabelSelector{}
	for _, r := range s.Requirements {
		if r.Op == api.NotIn {
			// Kubernetes' NotIn matches an object without the label, and cyclonus' does not. internal/kube compares Kubernetes'
			// own selectors with ours.
			o.MatchExpressions = append(o.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOpExists})
		}
		o.MatchExpressions = append(o.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key, Operator: operators[r.Op], Values: r.Values})
	}
	return o
}
