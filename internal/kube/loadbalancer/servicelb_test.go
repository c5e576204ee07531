package loadbalancer

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/kube"
)

func hostNode(name, addr string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

// localOfServiceLB returns a Service with externalTrafficPolicy Local and an endpoint on node-1.
func localOfServiceLB() (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.5", ClusterIPs: []string{"10.96.0.5"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}, NodeName: new("node-1")}},
	}
	return svc, slice
}

// TestServiceLBLocal: under externalTrafficPolicy Local, a Service has a node's address as long as an endpoint there
// serves. The pod may take a minute to end, and clients that know the address must not find the port closed. When
// another node has an endpoint that does not terminate, the status drops the address, and agents still serve it.
func TestServiceLBLocal(t *testing.T) {
	svc, slice := localOfServiceLB()
	client := fake.NewClientset(hostNode("node-1", "192.0.2.11"), hostNode("node-2", "192.0.2.12"), svc, slice)
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"})
	l := NewServiceLB(slog.New(slog.DiscardHandler), s, kube.NewRecorder(slog.New(slog.DiscardHandler), client, "node-1"), "", nil)
	runUntilEnd(t, s)
	stop := runStoppable(t, l.Run)
	defer stop()
	addresses := func() string {
		o, err := client.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(addressesOf(o))
		if served := fmt.Sprint(kube.ConvertService(o).BalancerIPs); served != text {
			text += ", served " + served
		}
		return text
	}
	until := func(when, want string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); addresses() != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %s, want %s", when, addresses(), want)
			}
		}
	}
	change := func(do func()) {
		do()
		if _, err := client.DiscoveryV1().EndpointSlices("shop").Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until("ready", "[192.0.2.11]")
	change(func() {
		slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	})
	ports := corev1.ServicePort{Port: 81, Protocol: corev1.ProtocolTCP}
	o, err := client.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Spec.Ports = append(o.Spec.Ports, ports)
	ports.Name, o.Spec.Ports[0].Name = "b", "a"
	if _, err := client.CoreV1().Services("shop").Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the decision has been made again
		o, err := client.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || len(o.Status.LoadBalancer.Ingress) != 1 || time.Now().After(end) {
			t.Fatalf("while the last endpoint terminates: %v, %v", o.Status.LoadBalancer, err)
		}
		if len(o.Status.LoadBalancer.Ingress[0].Ports) == 2 {
			break
		}
	}
	change(func() {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.2.5"}, NodeName: new("node-2")})
	})
	until("another node has one", "[192.0.2.12], served [192.0.2.12 192.0.2.11]")
	change(func() { slice.Endpoints = slice.Endpoints[1:] })
	until("the last one has ended", "[192.0.2.12]")
	change(func() { slice.Endpoints = nil })
	until("gone", "[]")
}
