package loadbalancer

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// TestReservedAddresses: no pool gives the addresses of the API server, of nodes and of pods, or addresses that no
// machine can have.
func TestReservedAddresses(t *testing.T) {
	node := apiNode("node-1", "172.18.0.11")
	node.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.11"})
	client := fake.NewClientset(node,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.18.0.2"}}, {Addresses: []string{"172.18.0.3"}}},
		},
	)
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"})
	sub := s.SubscribeServices("services")
	runUntilEnd(t, s)
	waitFor(t, sub.Synced(), "the first lists")
	all := reservedRanges(s)
	for text, want := range map[string]bool{
		"10.244.1.77": true, "127.0.0.8": true, "224.0.0.5": true, "0.0.0.0": true, "255.255.255.255": true, "::1": true, "ff02::1": true, "172.18.0.3": true, "172.18.0.11": true, "203.0.113.11": true, "10.96.0.1": true,
		"10.244.2.1": false, "172.18.0.12": false, "2001:db8::1": false,
	} {
		a := netip.MustParseAddr(text)
		if got := slices.ContainsFunc(all, func(r ipam.Range) bool { return r.Contains(a) }); got != want {
			t.Errorf("%v is reserved: %v, want %v", a, got, want)
		}
	}
}
