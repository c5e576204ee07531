package peers

import (
	"context"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes/fake"
	peerapi "sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	peerpolicy "sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	cnp "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	npav1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	npafake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/fairway-net/fairway/internal/api"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestKubeNetworkPolicies compares what all tiers decide with kube-network-policies, for random
// clusters: POLICY_CASES=N packets about which a ClusterNetworkPolicy has rules.
func TestKubeNetworkPolicies(t *testing.T) {
	cases := int(number(t, "POLICY_CASES", 4_000))
	r := testnet.Random(t)
	var done, byAdmin, byBaseline, denied int
	for done < cases {
		w := policytest.New(r)
		w.Tiers, w.FirstPort = true, 1 // there a port's name counts as port 0
		c := networkpolicy.New("here")
		for range 60 {
			w.Step(c)
		}
		oracle := newTiers(t, w, c)
		table, _ := c.Compile()
		for range 250 {
			p := networkpolicy.Packet{Src: w.Addr(), Dst: w.Addr(), Proto: []api.Proto{api.TCP, api.UDP, api.SCTP}[w.IntN(3)], Port: 1 + uint16(w.IntN(7))}
			if p.Src.Is4() != p.Dst.Is4() || p.Src == p.Dst {
				continue // an address of its own is exempt from NetworkPolicies here
			}
			got, want := networkpolicy.Lookup(table, p), oracle.ask(t, p)
			if table.Cluster[networkpolicy.Egress][p.Src] || table.Cluster[networkpolicy.Ingress][p.Dst] {
				done++
			}
			for _, v := range []networkpolicy.Verdict{got.Egress, got.Ingress} {
				switch table.RuleOf(v).Tier {
				case networkpolicy.Admin:
					byAdmin++
				case networkpolicy.Baseline:
					byBaseline++
				}
			}
			if !got.Allowed() {
				denied++
			}
			if got.Egress.Allows() != want[networkpolicy.Egress] || got.Ingress.Allows() != want[networkpolicy.Ingress] {
				t.Fatalf("%+v: we say %+v (%v, %v), kube-network-policies egress %v, ingress %v", p, got, table.RuleOf(got.Egress), table.RuleOf(got.Ingress), want[networkpolicy.Egress], want[networkpolicy.Ingress])
			}
		}
	}
	t.Logf("%d packets that ClusterNetworkPolicies judge: %d decisions of tier Admin, %d of Baseline, %d packets denied", done, byAdmin, byBaseline, denied)
	if min(byAdmin, byBaseline, denied) < cases/50 {
		t.Error("the cases are one-sided")
	}
}

// tiers are kube-network-policies' view of a World.
type tiers struct {
	pods map[string]*peerapi.PodInfo
	// evaluators of each direction: there a NetworkPolicy that isolates a pod in one direction keeps
	// the other from tier Baseline too. The API says that NetworkPolicies decide about pods that they
	// select; here one without a word on a direction does not, so that Baseline still denies.
	evaluators [2][]peerapi.PolicyEvaluator
}

func newTiers(t *testing.T, w *policytest.World, c *networkpolicy.Compiler) *tiers {
	t.Helper()
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	core := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	custom := npainformers.NewSharedInformerFactory(npafake.NewClientset(), 0)
	policies := custom.Policy().V1alpha2().ClusterNetworkPolicies()
	own := [2]networkinginformers.NetworkPolicyInformer{}
	for d, kind := range []networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
		own[d] = informers.NewSharedInformerFactory(fake.NewClientset(), 0).Networking().V1().NetworkPolicies()
		for _, o := range completeWorld(w, c) {
			if slices.Contains(o.Spec.PolicyTypes, kind) {
				add(own[d].Informer().GetStore().Add(o))
			}
		}
	}
	for _, n := range w.Nodes {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
		for _, a := range n.Addrs {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		add(core.Core().V1().Nodes().Informer().GetStore().Add(o))
	}
	for name, p := range w.ClusterPolicies {
		o := clusterNetworkPolicy(p)
		add(policies.Informer().GetStore().Add(o))
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		add(err)
		ours := kubepolicy.ConvertClusterPolicy(&unstructured.Unstructured{Object: raw})
		if len(ours.Problems) > 0 {
			t.Fatalf("%+v: %v", o, ours.Problems)
		}
		c.SetClusterPolicy(name, ours)
	}
	out := &tiers{pods: map[string]*peerapi.PodInfo{}}
	for _, p := range w.Pods {
		for _, a := range p.Addrs {
			info := &peerapi.PodInfo{Name: p.Name.Name, Labels: p.Labels, Namespace: &peerapi.Namespace{Name: p.Name.Namespace, Labels: w.Namespaces[p.Name.Namespace].Labels}}
			for _, n := range p.Ports {
				info.ContainerPorts = append(info.ContainerPorts, &peerapi.ContainerPort{Name: n.Name, Port: int32(n.Number), Protocol: n.Proto.String()})
			}
			out.pods[a.String()] = info
		}
	}
	for d := range out.evaluators {
		out.evaluators[d] = []peerapi.PolicyEvaluator{
			cnp.NewClusterNetworkPolicy(npav1alpha2.AdminTier, policies, nil, core.Core().V1().Nodes().Lister()),
			peerpolicy.NewStandardNetworkPolicy("here", core.Core().V1().Namespaces(), core.Core().V1().Pods(), own[d]),
			cnp.NewClusterNetworkPolicy(npav1alpha2.BaselineTier, policies, nil, core.Core().V1().Nodes().Lister()),
		}
	}
	return out
}

// ask returns whether each direction allows a packet.
func (o *tiers) ask(t *testing.T, p networkpolicy.Packet) (allowed [2]bool) {
	t.Helper()
	packet := &network.Packet{SrcIP: net.IP(p.Src.AsSlice()), DstIP: net.IP(p.Dst.AsSlice()), Proto: corev1.Protocol(p.Proto.String()), SrcPort: 40000, DstPort: int(p.Port)}
	from, to := o.pods[p.Src.String()], o.pods[p.Dst.String()]
	for d := range allowed {
		allowed[d] = true
		for _, e := range o.evaluators[d] {
			evaluate := e.EvaluateEgress
			if networkpolicy.Direction(d) == networkpolicy.Ingress {
				evaluate = e.EvaluateIngress
			}
			verdict, err := evaluate(context.Background(), packet, from, to)
			if err != nil {
				t.Fatal(err)
			}
			if verdict != peerapi.VerdictNext {
				allowed[d] = verdict == peerapi.VerdictAccept
				break
			}
		}
	}
	return allowed
}

// clusterNetworkPolicy is a policy as administrators write it. Rules without peers, which only
// unknown ones become, are left out.
func clusterNetworkPolicy(p *networkpolicy.ClusterPolicy) *npav1alpha2.ClusterNetworkPolicy {
	o := &npav1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	o.Spec.Tier, o.Spec.Priority = npav1alpha2.Tier(p.Tier.String()), int32(p.Priority)
	o.Spec.Subject.Namespaces, o.Spec.Subject.Pods = clusterPods(&p.Subject)
	for _, r := range p.Rules[networkpolicy.Ingress] {
		rule := npav1alpha2.ClusterNetworkPolicyIngressRule{Name: r.Name, Action: npav1alpha2.ClusterNetworkPolicyRuleAction(r.Action.String()), Protocols: clusterProtocols(r.Ports)}
		for _, peer := range r.Peers {
			var out npav1alpha2.ClusterNetworkPolicyIngressPeer
			out.Namespaces, out.Pods = clusterPods(&peer)
			rule.From = append(rule.From, out)
		}
		if len(rule.From) > 0 {
			o.Spec.Ingress = append(o.Spec.Ingress, rule)
		}
	}
	for _, r := range p.Rules[networkpolicy.Egress] {
		rule := npav1alpha2.ClusterNetworkPolicyEgressRule{Name: r.Name, Action: npav1alpha2.ClusterNetworkPolicyRuleAction(r.Action.String()), Protocols: clusterProtocols(r.Ports)}
		for _, peer := range r.Peers {
			var out npav1alpha2.ClusterNetworkPolicyEgressPeer
			switch {
			case peer.Block != nil:
				out.Networks = []npav1alpha2.CIDR{npav1alpha2.CIDR(peer.Block.CIDR.String())}
			case peer.Nodes != nil:
				out.Nodes = labelSelector(peer.Nodes)
			default:
				out.Namespaces, out.Pods = clusterPods(&peer)
			}
			rule.To = append(rule.To, out)
		}
		if len(rule.To) > 0 {
			o.Spec.Egress = append(o.Spec.Egress, rule)
		}
	}
	return o
}

func clusterPods(p *networkpolicy.Peer) (*metav1.LabelSelector, *npav1alpha2.NamespacedPod) {
	if p.Pods == nil {
		return labelSelector(p.Namespaces), nil
	}
	return nil, &npav1alpha2.NamespacedPod{NamespaceSelector: *labelSelector(p.Namespaces), PodSelector: *labelSelector(p.Pods)}
}

func clusterProtocols(all []networkpolicy.Port) (out []npav1alpha2.ClusterNetworkPolicyProtocol) {
	for _, p := range all {
		var port *npav1alpha2.Port
		switch {
		case p.Name != "":
			if p.Proto == api.TCP { // a name stands for all protocols
				out = append(out, npav1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: p.Name})
			}
			continue
		case p.First == 0 && p.Last == 65535:
		case p.First == p.Last:
			port = &npav1alpha2.Port{Number: int32(p.First)}
		default:
			port = &npav1alpha2.Port{Range: &npav1alpha2.PortRange{Start: int32(p.First), End: int32(p.Last)}}
		}
		var o npav1alpha2.ClusterNetworkPolicyProtocol
		switch p.Proto {
		case api.UDP:
			o.UDP = &npav1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case api.SCTP:
			o.SCTP = &npav1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			o.TCP = &npav1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		}
		out = append(out, o)
	}
	return out
}
