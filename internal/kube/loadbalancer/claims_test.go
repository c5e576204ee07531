package loadbalancer

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

// A claimsRig is an API server with a pool, a Service of type LoadBalancer, and a node with a kubelet that the test
// controls.
type claimsRig struct {
	*testing.T
	client    *fake.Clientset
	rogue     *corev1.Node
	addresses *Addresses // of the newest controller
}

func newClaimsRig(t *testing.T) *claimsRig {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.5", ClusterIPs: []string{"10.96.0.5"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "p80", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "p10250", Port: 10250, Protocol: corev1.ProtocolTCP}},
	}}
	r := &claimsRig{T: t, rogue: apiNode("rogue", "192.0.2.11")}
	r.client = fake.NewClientset(r.rogue, svc)
	return r
}

// begin starts a controller.
func (r *claimsRig) begin() (end func()) {
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": map[string]any{"name": "lan", "namespace": "metallb-system"},
		"spec": map[string]any{"addresses": []any{"192.0.2.50-192.0.2.59"}},
	}}
	log := slog.New(slog.DiscardHandler)
	s := kube.New(kube.Config{Log: log, Client: r.client, AllNodes: true, Custom: newMetallbAPI(pool), LoadBalancerNamespace: "metallb-system"})
	events := kube.NewRecorder(log, r.client, "node-1")
	a := NewAddresses(log, s, events, "", IPModeVIP, []ipam.PortRange{{First: 10250, Last: 10250}})
	r.addresses = a
	ends := []func(){runStoppable(r.T, events.Run), runStoppable(r.T, s.Run), runStoppable(r.T, a.Run)}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

func (r *claimsRig) service() *corev1.Service {
	r.Helper()
	o, err := r.client.CoreV1().Services("shop").Get(r.Context(), "web", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// until waits until the Service's status has the addresses and ports.
func (r *claimsRig) until(when, want string) {
	r.Helper()
	awaitText(r.T, when, want, func() string { s := kube.ConvertService(r.service()); return fmt.Sprint(s.BalancerIPs, s.CheckedPorts) })
}

// claim writes these addresses into the node's status as well.
func (r *claimsRig) claim(also ...string) {
	r.Helper()
	r.rogue.Status.Addresses = r.rogue.Status.Addresses[:1]
	for _, a := range also {
		r.rogue.Status.Addresses = append(r.rogue.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	if _, err := r.client.CoreV1().Nodes().UpdateStatus(r.Context(), r.rogue, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// port adds a port to the Service.
func (r *claimsRig) port(port int32) {
	r.Helper()
	o := r.service()
	o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolTCP})
	if _, err := r.client.CoreV1().Services("shop").Update(r.Context(), o, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// events lists the objects that have an event about the claim.
func (r *claimsRig) events() string {
	all, err := r.client.EventsV1().Events("").List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	var out []string
	for _, e := range all.Items {
		if e.Reason == reasonClaimed && strings.Contains(e.Note, "192.0.2.50") {
			out = append(out, e.Regarding.Kind+" "+e.Regarding.Name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestClaimedAddress: a kubelet writes a Service's load-balancer address into its Node, and the Service keeps the
// address. The status names the ports that agents still serve, without the ports of nodes' own programs. This also
// holds for ports added after the claim, and for a second controller. The events name the node.
func TestClaimedAddress(t *testing.T) {
	r := newClaimsRig(t)
	end := r.begin()
	r.until("without a claim", "[192.0.2.50] []")
	r.claim("192.0.2.50")
	r.until("claimed", "[192.0.2.50] [{TCP 80}]")
	awaitText(t, "the events", "Node rogue, Service web", r.events)
	r.port(443)
	r.until("with another port", "[192.0.2.50] [{TCP 80} {TCP 443}]")
	// An agent that knows the claim serves these ports.
	got := service.Compile(kube.ConvertService(r.service()), nil, service.Facts{Node: service.Node{Name: "node-1", NodeAddrs: service.NewAddrSet(ips("192.0.2.11", "192.0.2.50")...)}})
	var served []string
	for _, f := range got.Frontends {
		if f.LoadBalancer {
			served = append(served, f.Addr.String())
		}
	}
	if text := strings.Join(served, " "); text != "192.0.2.50:80 192.0.2.50:443" {
		t.Errorf("an agent serves %q", text)
	}
	end()
	defer r.begin()()
	r.claim()
	r.port(8080)
	r.until("the claim is gone", "[192.0.2.50] [{TCP 80} {TCP 443} {TCP 8080}]")
}

// TestMissingAddress: a Service that waits for an address has the reason in a condition, also after a restart of the
// controller, until it has the address or asks for none.
func TestMissingAddress(t *testing.T) {
	r := newClaimsRig(t)
	change := func(change func(*corev1.Service)) {
		t.Helper()
		o := r.service()
		change(o)
		if _, err := r.client.CoreV1().Services("shop").Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(pool string) {
		t.Helper()
		change(func(o *corev1.Service) { o.Annotations = map[string]string{"metallb.io/address-pool": pool} })
	}
	state := func() string {
		o := r.service()
		return fmt.Sprint(kube.ConvertService(o).BalancerIPs, " ", missingAddress(o.Status.Conditions), " ", len(o.Status.Conditions))
	}
	ask("wan")
	end := r.begin()
	awaitText(t, "an unknown pool", `[] unknown pool "wan" 1`, state)
	ask("dmz")
	awaitText(t, "another one", `[] unknown pool "dmz" 1`, state)
	end()
	ask("lan")
	end = r.begin()
	awaitText(t, "a pool", "[192.0.2.50]  0", state)
	ask("wan")
	awaitText(t, "an unknown pool again", `[192.0.2.50] unknown pool "wan" 1`, state)
	change(func(o *corev1.Service) { o.Annotations["metallb.io/address-pool"] = "lan" })
	awaitText(t, "what it has", "[192.0.2.50]  0", state)
	change(func(o *corev1.Service) { o.Annotations["metallb.io/address-pool"] = "wan" })
	awaitText(t, "an unknown pool at last", `[192.0.2.50] unknown pool "wan" 1`, state)
	change(func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP })
	awaitText(t, "no load balancer", "[]  0", state)
	end()
}

// TestServicesAllocated: the metric counts the Services with addresses of a pool.
func TestServicesAllocated(t *testing.T) {
	r := newClaimsRig(t)
	defer r.begin()()
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.addresses)
	count := func() string {
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range all {
			if f.GetName() == "metallb_allocator_services_allocated_total" {
				for _, m := range f.GetMetric() {
					out = append(out, fmt.Sprint(m.GetLabel()[0].GetValue(), " ", m.GetGauge().GetValue()))
				}
			}
		}
		return strings.Join(out, ", ")
	}
	awaitText(t, "with a Service", "lan 1", count)
	if err := r.client.CoreV1().Services("shop").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitText(t, "without one", "lan 0", count)
}

// awaitText waits until read returns the wanted text.
func awaitText(t *testing.T, what, want string, read func() string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); read() != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %s, want %s", what, read(), want)
		}
	}
}
