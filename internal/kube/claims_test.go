package kube

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/podnetwork/egress"
	"github.com/fairway-net/fairway/internal/service"
)

// TestMirrorPodTakesNoEgress: a rogue kubelet's mirror pod claims the address of another node's pod, and would leave the
// cluster by another Service. The other node's pod keeps its way.
func TestMirrorPodTakesNoEgress(t *testing.T) {
	node := func(name, podCIDR string) *corev1.Node {
		o := apiNode(name, "")
		o.Spec.PodCIDRs = []string{podCIDR}
		return o
	}
	pod := func(namespace, name, node, addr string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: addr}}}}
	}
	client := fake.NewClientset(node("n1", "10.244.1.0/24"), node("rogue", "10.244.4.0/24"),
		pod("shop", "a", "n1", "10.244.1.2"), pod("other", "mirror", "rogue", "10.244.1.2"))
	s := New(Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "n2", AllNodes: true, PodNetwork: true})
	v := s.SubscribeEgress()
	runUntilEnd(t, s)
	waitFor(t, v.Synced(), "Synced")
	all := func(namespace, addr string) *service.Service {
		return &service.Service{Name: api.Name{Namespace: namespace, Name: "out"}, Egress: &service.Egress{All: true},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, BalancerIPs: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	table := egress.Compile(egress.Input{Services: []*service.Service{all("shop", "198.51.100.1"), all("other", "198.51.100.2")}, Pods: v.Pods(),
		Owner: func(netip.Addr) string { return "n2" }, Routed: func(netip.Addr) bool { return false }})
	c := table.Pods[netip.MustParseAddr("10.244.1.2")]
	if got := fmt.Sprint(c.Service, " ", c.Node, " ", c.Addr, " ", c.Gateway); got != "shop/out n1 198.51.100.1 n2" || len(table.Pods) != 1 {
		t.Errorf("the pod of n1 leaves by %s, and %d pods do; want shop/out n1 198.51.100.1 n2, and one", got, len(table.Pods))
	}
}

// TestClaimsOfTwoNodes: the order of their creation decides, and a change of one node counts for the other.
func TestClaimsOfTwoNodes(t *testing.T) {
	old, young := apiNode("old", ""), apiNode("young", "")
	old.CreationTimestamp, young.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	old.Spec.PodCIDRs, young.Spec.PodCIDRs = []string{"10.244.1.0/24"}, []string{"10.244.1.0/25"}
	client := fake.NewClientset(old, young)
	s := New(Config{Log: slog.New(slog.DiscardHandler), Client: client, AllNodes: true})
	claims := s.NodeClaims()
	sub := s.SubscribeNodes("test")
	runUntilEnd(t, s)
	waitFor(t, sub.Synced(), "Synced")
	watched(t, client, 2)
	if now := claims.Now(); len(now.PodCIDRs("old")) != 1 || len(now.PodCIDRs("young")) != 0 || now != claims.Now() {
		t.Errorf("old has %v, young %v", now.PodCIDRs("old"), now.PodCIDRs("young"))
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the younger node to have the podCIDR", func() bool { return len(claims.Now().PodCIDRs("young")) == 1 })
	if now := claims.Now(); len(now.PodCIDRs("old")) != 0 || len(claims.podCIDRs) != 1 {
		t.Errorf("the node that is gone keeps %v", now.PodCIDRs("old"))
	}
}
