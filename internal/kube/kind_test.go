package kube

import (
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
)

// TestAnotherKind reads a kind that the Store does not know, and a custom resource. Each needs one declaration.
func TestAnotherKind(t *testing.T) {
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "a"}}})
	pools := schema.GroupVersionResource{Group: "fairway.net", Version: "v1alpha1", Resource: "addresspools"}
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fairway.net/v1alpha1", "kind": "AddressPool", "metadata": map[string]any{"name": "outside"},
		"spec": map[string]any{"cidr": "192.0.2.0/24"},
	}}
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{pools: "AddressPoolList"}, pool)
	s := New(Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"})

	namespaces := Open(s, Kind[*corev1.Namespace, string]{
		Name: "namespaces", Object: &corev1.Namespace{}, Client: From(client.CoreV1().Namespaces()),
		Trim: func(o *corev1.Namespace) *string { team := o.Labels["team"]; return &team },
	})
	cidrs := Open(s, Kind[*unstructured.Unstructured, string]{
		Name: "addresspools", Object: &unstructured.Unstructured{}, Client: From(custom.Resource(pools)),
		Trim: func(o *unstructured.Unstructured) *string {
			cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
			return &cidr
		},
	})

	sub := s.Subscribe("test")
	sub.Need([]Input{namespaces.Marks(sub), cidrs.Marks(sub)}, nil)
	runUntilEnd(t, s)

	waitFor(t, sub.Synced(), "Synced")
	shop, outside := api.Name{Name: "shop"}, api.Name{Name: "outside"}
	if got := sub.Take(); !slices.Equal(got, []api.Name{outside, shop}) {
		t.Errorf("took %v, want both", got)
	}
	if team, ok := namespaces.Get(shop); !ok || *team != "a" {
		t.Errorf("the namespace: %v %v", team, ok)
	}
	if cidr, ok := cidrs.Get(outside); !ok || *cidr != "192.0.2.0/24" {
		t.Errorf("the pool: %v %v", cidr, ok)
	}
	for _, a := range client.Actions() {
		if a.GetResource().Resource != "namespaces" {
			t.Errorf("reads %s, without a subscription", a.GetResource().Resource)
		}
	}
}

// TestSubscribers: each consumer gets all changes, whatever another consumer has taken. A later consumer gets the
// existing objects.
func TestSubscribers(t *testing.T) {
	web, apiName := svcName("web"), svcName("api")
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiSlice("web-1", "web", "10.0.0.1"), apiNode("node-1", "a"))
	first := start(t, client)
	second := &source{Store: first.Store, Services: first.SubscribeServices("second")}
	takeUntil(t, first, web)
	takeUntil(t, second, web)
	watched(t, client, 4)
	must[*corev1.Service](t)(client.CoreV1().Services("default").Create(t.Context(), apiService("api", "10.96.0.2"), metav1.CreateOptions{}))
	takeUntil(t, second, apiName)
	takeUntil(t, first, apiName)
	third := &source{Store: first.Store, Services: first.SubscribeServices("third")}
	takeUntil(t, third, web, apiName)
	for name, s := range map[string]*source{"first": first, "second": second} {
		if got := s.Take(); len(got) != 0 {
			t.Errorf("the %s consumer took %v when another one came", name, got)
		}
	}
}
