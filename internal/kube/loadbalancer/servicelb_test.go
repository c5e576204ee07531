package loadbalancer

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
	l := NewServiceLB(slog.New(slog.DiscardHandler), s, kube.NewRecorder(slog.New(slog.DiscardHandler), client, "node-1"), "", nil, nil)
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

// TestClaimsOfHosts: a rogue kubelet adds addresses to its Node. No Service gets them, and no honest node loses its own.
func TestClaimsOfHosts(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "any", Name: "web", UID: "1"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.5", ClusterIPs: []string{"10.96.0.5"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	node := func(name, podCIDR string, age int64, internal string, external ...string) *corev1.Node {
		o := hostNode(name, internal)
		o.CreationTimestamp, o.Spec.PodCIDRs = metav1.NewTime(time.Unix(1<<30-age, 0)), []string{podCIDR}
		for _, a := range external {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a})
		}
		return o
	}
	rogue := []string{"203.0.113.10", "8.8.8.8", "192.0.2.11", "10.244.1.7", "10.96.0.1"}
	for _, test := range []struct {
		name     string
		ranges   []netip.Prefix
		external string // of node-1
		want     string
	}{
		{"no ranges", nil, "198.51.100.1", "[192.0.2.11 192.0.2.12]"},
		{"a range", []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, "198.51.100.1", "[198.51.100.1]"},
		{"a range of all", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, "198.51.100.1", "[8.8.8.8 198.51.100.1 203.0.113.10]"},
	} {
		client := fake.NewClientset(node("node-1", "10.244.1.0/24", 2, "192.0.2.11", test.external), node("rogue", "10.244.2.0/24", 1, "192.0.2.12", rogue...), svc.DeepCopy(),
			&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
		s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
		l := NewServiceLB(slog.New(slog.DiscardHandler), s, kube.NewRecorder(slog.New(slog.DiscardHandler), client, ""), "", nil, test.ranges)
		stopStore, stop := runStoppable(t, s.Run), runStoppable(t, l.Run)
		var o *corev1.Service
		got := ""
		for end := time.Now().Add(20 * time.Second); got != test.want && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			var err error
			if o, err = client.CoreV1().Services("any").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			got = fmt.Sprint(addressesOf(o))
		}
		if got != test.want {
			t.Errorf("%s: the Service has %s, want %s", test.name, got, test.want)
		}
		if !kube.ConvertService(o).OnNodes {
			t.Errorf("%s: the status does not tell agents that the addresses are nodes' own: %+v", test.name, o.Status.Conditions)
		}
		stop()
		stopStore()
	}
}
