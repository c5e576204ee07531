package gateway

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// onceConfig is a cluster with a Gateway, its route, and a Secret that the reader may not see.
func onceConfig(t *testing.T) kube.Config {
	t.Helper()
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}}, {Addresses: []string{"10.244.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}},
		},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: bindsName}, Data: map[string]string{"uid-of-front": "20005=TCP/443"}},
	)
	client.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, a.(clienttesting.GetAction).GetName(), fmt.Errorf("no"))
	})
	custom := newCustom(t,
		custom("GatewayClass", "", "fairway", map[string]any{"controllerName": "fairway.net/gateway"}),
		custom("Gateway", "shop", "front", map[string]any{"gatewayClassName": "fairway", "listeners": []any{map[string]any{
			"name": "https", "port": int64(443), "protocol": "HTTPS", "tls": map[string]any{"certificateRefs": []any{map[string]any{"name": "cert"}}}}}}),
		custom("HTTPRoute", "shop", "web", map[string]any{"parentRefs": []any{map[string]any{"name": "front"}}, "rules": []any{
			map[string]any{"backendRefs": []any{map[string]any{"name": "web", "port": int64(80)}}}}}))
	return kube.Config{Log: newStore(client, custom).Config().Log, Client: client, Custom: custom, NodeName: "none"}
}

// TestOnce: a person's command reads a cluster once, with the endpoints of Services. A Secret that the person may not see
// counts as good, and is named.
func TestOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s, err := Once(ctx, onceConfig(t), "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Assumed) != 1 || s.Assumed[0] != (api.Name{Namespace: "shop", Name: "cert"}) {
		t.Errorf("assumed: %v", s.Assumed)
	}
	ask, err := gateway.ParseAsk("https://shop.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	port := s.Bind(api.Name{Namespace: "shop", Name: "front"}, 443)
	d := s.Table().Lookup(port, ask)
	if d.Outcome != gateway.Serve || len(s.Services[d.Rule.Backends[0].Service]) != 1 {
		t.Errorf("at port %d: %+v; endpoints %v", port, d, s.Services)
	}
}
