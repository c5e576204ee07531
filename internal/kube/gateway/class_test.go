package gateway

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// runController runs a controller in a cluster with these objects of Gateway API.
func runController(t *testing.T, custom dynamic.Interface) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: bindsName}})
	s := kube.New(kube.Config{Log: log, Client: client, Custom: custom, AllNodes: true})
	runAll(t, s, NewController(log, s, kube.NewRecorder(log, client, "test"), ControllerConfig{Namespace: "kube-system"}))
}

// TestClass: the controller makes the GatewayClass, also if its CustomResourceDefinition comes later, and makes it again. It
// leaves a user's class as it is.
func TestClass(t *testing.T) {
	k, _ := customKindOf(gateway.KindGatewayClass)
	for name, tc := range map[string]struct {
		have *unstructured.Unstructured
		late bool
		want string
	}{
		"absent":    {want: ControllerName},
		"a user's":  {have: custom("GatewayClass", "", "fairway", map[string]any{"controllerName": "example.com/other"}), want: "example.com/other"},
		"CRD later": {late: true, want: ControllerName},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var have []*unstructured.Unstructured
			if tc.have != nil {
				have = append(have, tc.have)
			}
			api1 := newCustom(t, have...)
			var created atomic.Int32
			api1.PrependReactor("create", "gatewayclasses", func(clienttesting.Action) (bool, runtime.Object, error) { created.Add(1); return false, nil, nil })
			absent := tc.late
			api1.PrependReactor("list", "gatewayclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
				if was := absent; was {
					absent = false
					return true, nil, apierrors.NewNotFound(k.resource.GroupResource(), "")
				}
				return false, nil, nil
			})
			runController(t, api1)
			classes := api1.Resource(k.resource)
			controllerOf := func() string {
				o, err := classes.Get(t.Context(), className, metav1.GetOptions{})
				if err != nil {
					return ""
				}
				text, _, _ := unstructured.NestedString(o.Object, "spec", "controllerName")
				return text
			}
			await := func() {
				t.Helper()
				for end := time.Now().Add(deadline); controllerOf() != tc.want; time.Sleep(20 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("the class is of %q, want %q", controllerOf(), tc.want)
					}
				}
			}
			await()
			if tc.have != nil {
				time.Sleep(500 * time.Millisecond)
				if await(); created.Load() > 0 {
					t.Error("the controller tried to make a class that exists")
				}
				return
			}
			if err := classes.Delete(t.Context(), className, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			await()
		})
	}
}
