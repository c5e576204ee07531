package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
)

// TestOwnNode: a node's object is deleted and created again while the agent runs. At first it has no address, then
// another address and another podCIDR. A missing value leaves the old value, and a new value counts.
func TestOwnNode(t *testing.T) {
	node := func(zone, addr, podCIDR string) *corev1.Node {
		o := apiNode("node-1", zone)
		if addr != "" {
			o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}
		}
		o.Spec.PodCIDR = podCIDR
		return o
	}
	client := fake.NewClientset(node("a", "172.18.0.11", "10.244.1.0/24"))
	s := start(t, client, func(c *Config) { c.AllNodes = true })
	waitFor(t, s.Synced(), "Synced")
	watched(t, client, 3)
	nodes := client.CoreV1().Nodes()
	for _, step := range []struct {
		what string
		node runtime.Object // nil means deleted
		want string
	}{
		{"at first", nil, "a [172.18.0.11] [10.244.1.0/24] eligible true"},
		{"deleted", nil, "a [172.18.0.11] [10.244.1.0/24] eligible false"},
		{"made again, bare", node("b", "", ""), "b [172.18.0.11] [10.244.1.0/24] eligible true"},
		{"has its podCIDR", node("b", "", "10.244.7.0/24"), "b [172.18.0.11] [10.244.7.0/24] eligible true"},
		{"has another address", node("b", "172.18.0.99", "10.244.7.0/24"), "b [172.18.0.99] [10.244.7.0/24] eligible true"},
		{"bare again", node("b", "", ""), "b [172.18.0.99] [10.244.7.0/24] eligible true"},
		{"deleted again", nil, "b [172.18.0.99] [10.244.7.0/24] eligible false"},
	} {
		switch {
		case step.what == "at first":
		case step.node == nil:
			if err := nodes.Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		case step.what == "made again, bare":
			must[*corev1.Node](t)(nodes.Create(t.Context(), step.node.(*corev1.Node), metav1.CreateOptions{}))
		default:
			must[*corev1.Node](t)(nodes.Update(t.Context(), step.node.(*corev1.Node), metav1.UpdateOptions{}))
		}
		waitFor(t, s.NodeChanged(), step.what)
		n, known := s.Node()
		got := fmt.Sprint(n.Zone, " ", n.Addrs, " ", n.PodCIDRs, " eligible ", n.Eligible)
		if got != step.want || !known {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
		if all := s.Nodes(); len(all) != 1 || !all[0].Equal(n) {
			t.Errorf("%s: Nodes() = %+v", step.what, all)
		}
	}
}

// TestManyAddresses: a kubelet fills its node's status with addresses, and only a few count.
func TestManyAddresses(t *testing.T) {
	var o corev1.Node
	for i := range 40_000 {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.9.%d.%d", i/250, i%250)})
	}
	if got := ConvertNode(&o); len(got.Addrs) != api.MaxNodeAddrs || len(got.Problems) != 1 || !strings.HasPrefix(got.Problems[0].Message, "40000 addresses are more than 64") {
		t.Errorf("of 40,000 addresses %d count; %s", len(got.Addrs), messages(got.Problems))
	}
}
