package kube

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/service"
)

// TestCounts: changes are pending until Take. The total count never decreases.
func TestCounts(t *testing.T) {
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiSlice("web-1", "web", "10.244.0.1"), apiNode("node-1", "a"))
	s := start(t, client)
	waitFor(t, s.Synced(), "the first lists")
	if got, want := s.Changes(), (service.Changes{Services: 1, Endpoints: 1, ServicesPending: 1, EndpointsPending: 1}); got != want {
		t.Errorf("after the first lists: %+v, want %+v", got, want)
	}
	waitFor(t, s.Dirty(), "the first change")
	s.Take()
	if got, want := s.Changes(), (service.Changes{Services: 1, Endpoints: 1}); got != want {
		t.Errorf("after Take: %+v, want %+v", got, want)
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), apiSlice("web-1", "web", "10.244.0.2"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, s.Dirty(), "the second change")
	if got, want := s.Changes(), (service.Changes{Services: 1, Endpoints: 2, EndpointsPending: 1}); got != want {
		t.Errorf("after another change: %+v, want %+v", got, want)
	}
}
