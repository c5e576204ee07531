package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
)

// TestDestination: a person names a Service by its name or by one of its addresses. Its ports lead to the ready
// endpoints, with the endpoints' ports.
func TestDestination(t *testing.T) {
	notReady, http, dns := false, "http", "dns"
	port, dnsPort := int32(8080), int32(5353)
	client := fake.NewClientset(
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec: corev1.ServiceSpec{
				ClusterIPs: []string{"10.96.0.20", "fd00::20"}, ExternalIPs: []string{"192.0.2.7"},
				Ports: []corev1.ServicePort{{Name: http, Port: 80, Protocol: corev1.ProtocolTCP}, {Name: dns, Port: 53, Protocol: corev1.ProtocolUDP}},
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.8"}}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Ports:      []discoveryv1.EndpointPort{{Name: &http, Port: &port}, {Name: &dns, Port: &dnsPort}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.1.2"}}, {Addresses: []string{"10.244.1.1"}},
				{Addresses: []string{"10.244.1.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &notReady}},
			},
		},
	)
	for subject, want := range map[string]string{
		"service/shop/web": "web", "svc/shop/web": "web", "10.96.0.20": "web", "fd00::20": "web", "192.0.2.7": "web", "192.0.2.8": "web",
		"10.244.1.1": "", "shop/web": "", "": "",
		"service/shop/none": "there is no Service shop/none", "service/web": "does not name a Service",
	} {
		s, err := FindService(t.Context(), client, subject)
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case s != nil:
			got = s.Name
		}
		if got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%q means %q, want %q", subject, got, want)
		}
	}
	s, err := FindService(t.Context(), client, "10.96.0.20")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proto api.Proto
		port  uint16
		want  string
	}{
		{api.TCP, 80, "[{TCP 80 10.244.1.1 8080} {TCP 80 10.244.1.2 8080}]"},
		{api.UDP, 53, "[{UDP 53 10.244.1.1 5353} {UDP 53 10.244.1.2 5353}]"},
		{0, 0, "[{UDP 53 10.244.1.1 5353} {UDP 53 10.244.1.2 5353} {TCP 80 10.244.1.1 8080} {TCP 80 10.244.1.2 8080}]"},
		{api.TCP, 81, "service shop/web has no ready endpoint for this port [fairway explain shop/web says why]"},
	} {
		all, err := Destinations(t.Context(), client, s, c.proto, c.port)
		got := fmt.Sprint(all)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("port %d: %s, want %s", c.port, got, c.want)
		}
	}
}

// TestWhyUnserved: a Service that does not exist, and the kinds of Services that no proxy serves, are different cases.
func TestWhyUnserved(t *testing.T) {
	service := func(name string, labels map[string]string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}, Spec: spec}
	}
	client := fake.NewClientset(
		service("headless", nil, corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}),
		service("outside", nil, corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example.org"}),
		service("other", map[string]string{"service.kubernetes.io/service-proxy-name": "mesh"}, corev1.ServiceSpec{ClusterIP: "10.96.0.9"}),
	)
	for name, want := range map[string]string{
		"headless": "service shop/headless is headless: no proxy serves it, and DNS answers its name with the addresses of its pods",
		"outside":  "service shop/outside has the type ExternalName: no proxy serves it, and DNS answers its name with db.example.org",
		"other":    `service shop/other belongs to the proxy "mesh", by its label service.kubernetes.io/service-proxy-name`,
		"none":     "there is no Service shop/none [kubectl get services -n shop lists those that are]",
	} {
		if got := WhyUnserved(t.Context(), client, api.Name{Namespace: "shop", Name: name}).Error(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
