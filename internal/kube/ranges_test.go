package kube

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestServiceCIDRs(t *testing.T) {
	cidr := func(name string, texts ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: texts}}
	}
	client := fake.NewClientset(cidr("kubernetes", "10.96.0.0/12", "fd00:10:96::/112"))
	s := start(t, client)
	waitFor(t, s.Synced(), "the first lists")
	waitFor(t, s.Dirty(), "the first wake-up")
	if got, want := s.ServiceCIDRs(), []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}; !slices.Equal(got, want) {
		t.Errorf("ServiceCIDRs %v, want %v", got, want)
	}
	if _, err := client.NetworkingV1().ServiceCIDRs().Create(context.Background(), cidr("more", "10.112.0.0/16"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, s.Dirty(), "news of another range")
	if got := len(s.ServiceCIDRs()); got != 3 {
		t.Errorf("%d ranges, want 3", got)
	}
	if names := s.Take(); len(names) != 0 {
		t.Errorf("a ServiceCIDR made Services dirty: %v", names)
	}
}

// TestNoServiceCIDRs: an API server that does not know them delays no consumer.
func TestNoServiceCIDRs(t *testing.T) {
	client := fake.NewClientset(apiService("web", "10.96.0.1"))
	client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, "")
	})
	s := start(t, client)
	waitFor(t, s.Synced(), "the first lists")
	if got := s.ServiceCIDRs(); len(got) != 0 {
		t.Errorf("ServiceCIDRs %v, want none", got)
	}
	if names := s.Take(); len(names) != 1 {
		t.Errorf("took %v, want one Service", names)
	}
}

// The API server's addresses are those of its Service; those of nodes are watched.
func TestAddressesOfCluster(t *testing.T) {
	node := apiNode("node-1", "a")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.0.11"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.11"}}
	s := start(t, fake.NewClientset(
		apiService("kubernetes", "10.96.0.1"), apiSlice("kubernetes", "kubernetes", "172.18.0.2", "172.18.0.3"),
		apiService("web", "10.96.0.7"), apiSlice("web-1", "web", "10.244.1.5"), node,
	))
	waitFor(t, s.Synced(), "the first lists")
	if got, want := s.APIServers(), ips("10.96.0.1", "172.18.0.2", "172.18.0.3"); !slices.Equal(got, want) {
		t.Errorf("the API server is at %v, want %v", got, want)
	}
	if got, want := s.NodeAddrs(), ips("172.18.0.11", "203.0.113.11"); !slices.Equal(got, want) {
		t.Errorf("nodes are at %v, want %v", got, want)
	}
}
