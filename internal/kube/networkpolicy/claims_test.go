package networkpolicy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// apiNode is a node of an age in days, with a podCIDR and addresses.
func apiNode(name string, age int, podCIDR string, addrs ...string) *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1<<30, 0).AddDate(0, 0, -age))}}
	if podCIDR != "" {
		o.Spec.PodCIDRs = []string{podCIDR}
	}
	for _, a := range addrs {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return o
}

func apiPod(namespace, name, node, app string, addrs ...string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{NodeName: node}}
	for _, a := range addrs {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return o
}

// nodesWatched waits for the watch of nodes, before which the fake API server forgets changes.
func nodesWatched(t *testing.T, client *fake.Clientset) {
	t.Helper()
	until(t, "the watch of nodes", func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", "nodes") })
	})
}

// fromClients is the policy shop/web: only pods app=client may connect.
var fromClients = &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: networkingv1.NetworkPolicySpec{
	PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}},
}}

// feed gives the changes to a compiler, as the enforcer does.
func feed(c *networkpolicy.Compiler, v *Policies) {
	d := v.Take()
	for _, n := range d.Namespaces {
		c.SetNamespace(n, v.Namespace(n))
	}
	for _, n := range d.Policies {
		c.SetPolicy(n, v.Policy(n))
	}
	for _, n := range d.Pods {
		c.SetPod(n, v.Pod(n))
	}
	for _, n := range d.Nodes {
		c.SetNode(n, v.Node(n))
	}
	for _, n := range d.ClusterPolicies {
		c.SetClusterPolicy(n, v.ClusterPolicy(n))
	}
}

// TestMirrorPodOfAnotherNodesAddress: with our pod network, a rogue kubelet gives other nodes' pod addresses the labels
// of its mirror pod.
func TestMirrorPodOfAnotherNodesAddress(t *testing.T) {
	client := fake.NewClientset(
		apiNode("n1", 9, "10.244.1.0/24", "192.0.2.1"), apiNode("n3", 8, "10.244.3.0/24", "192.0.2.3"), apiNode("rogue", 7, "10.244.4.0/24", "192.0.2.4"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, fromClients,
		apiPod("shop", "web", "n1", "web", "10.244.1.2"), apiPod("tenant", "bad", "n3", "bad", "10.244.3.3"), apiPod("shop", "client", "n3", "client", "10.244.3.4"),
		apiPod("shop", "client-rogue", "rogue", "client", "10.244.3.3", "10.244.4.4", "10.244.1.2"),
	)
	v := subscribeAndRun(t, kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "n1", AllNodes: true, PodNetwork: true,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}))
	waitFor(t, v.Synced(), "Synced")
	c := networkpolicy.New("n1")
	allowed := func(from string) bool {
		feed(c, v)
		table, _ := c.Compile()
		return networkpolicy.Lookup(table, networkpolicy.Packet{Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr("10.244.1.2"), Proto: api.TCP, Port: 80}).Allowed()
	}
	for from, want := range map[string]bool{"10.244.3.3": false, "10.244.3.4": true, "10.244.4.4": true, "10.244.9.9": false} {
		if got := allowed(from); got != want {
			t.Errorf("a packet from %s: allowed %t, want %t", from, got, want)
		}
	}
	if p := v.Cluster().Pods[api.Name{Namespace: "shop", Name: "client-rogue"}]; fmt.Sprint(p.Addrs) != "[10.244.4.4]" {
		t.Errorf("commands see the rogue's pod at %v", p.Addrs)
	}

	// A Node object that is gone for a moment keeps its pods, until another node has its podCIDR.
	nodesWatched(t, client)
	nodes := client.CoreV1().Nodes()
	if err := nodes.Delete(t.Context(), "n3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the node to go", func() bool { return len(v.store.Nodes()) == 2 })
	if !allowed("10.244.3.4") {
		t.Error("the client is denied while its Node object is gone")
	}
	if _, err := nodes.Create(t.Context(), apiNode("n5", 1, "10.244.3.0/24", "192.0.2.5"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "another node to have the podCIDR", func() bool { return !allowed("10.244.3.4") })
}

// TestClaimsOfPolicyNodes: what a rogue node may add to a ClusterNetworkPolicy's peer "nodes".
func TestClaimsOfPolicyNodes(t *testing.T) {
	rogue := apiNode("rogue", 7, "10.244.4.0/24", "192.0.2.4", "192.0.2.1", "10.244.1.2", "10.244.4.2", "10.96.0.1")
	for i := range 30000 {
		rogue.Status.Addresses = append(rogue.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("198.18.%d.%d", i/250, i%250)})
	}
	client := fake.NewClientset(apiNode("n1", 9, "10.244.1.0/24", "192.0.2.1"), rogue,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.ClusterNetworkPolicies: "ClusterNetworkPolicyList"},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": kube.ClusterNetworkPolicies.GroupVersion().String(), "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": "nodes"},
			"spec": map[string]any{"tier": "Admin", "priority": int64(1), "subject": map[string]any{"namespaces": map[string]any{}},
				"ingress": []any{map[string]any{"action": "Accept", "from": []any{map[string]any{"nodes": map[string]any{}}}}}},
		}})
	v := subscribeAndRun(t, kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "n1", Custom: custom,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}))
	waitFor(t, v.Synced(), "Synced")
	has := func(name string) []netip.Addr {
		n := v.Node(name)
		if n == nil {
			return nil
		}
		return n.Addrs
	}
	until(t, "the ServiceCIDR", func() bool {
		return !slices.Contains(has("rogue"), netip.MustParseAddr("10.96.0.1")) && has("rogue") != nil
	})
	if got := has("rogue"); len(got) != api.MaxNodeAddrs-4 || got[0] != netip.MustParseAddr("192.0.2.4") || got[1] != netip.MustParseAddr("198.18.0.0") {
		t.Errorf("%d addresses of the rogue count, the first are %v", len(got), got[:min(6, len(got))])
	}
	if got := has("n1"); fmt.Sprint(got) != "[192.0.2.1]" {
		t.Errorf("n1 has %v", got)
	}

	// A change of one node changes what counts for another.
	nodesWatched(t, client)
	v.Take()
	if err := client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the rogue to have the address of the node that is gone", func() bool { return slices.Contains(has("rogue"), netip.MustParseAddr("192.0.2.1")) })
	if d := v.Take(); !slices.Contains(d.Nodes, "rogue") || !slices.Contains(d.Nodes, "n1") {
		t.Errorf("dirty are the nodes %v, want n1 and rogue", d.Nodes)
	}
}
