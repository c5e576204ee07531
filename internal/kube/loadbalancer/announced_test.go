package loadbalancer

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// metallbObject returns an object of metallb.io.
func metallbObject(version, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/" + version, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "metallb-system"}, "spec": spec,
	}}
}

// announcedAPI is an API server with the status objects of node-1's speaker, and with a ConfigurationState of a node
// that is gone.
func announcedAPI(since time.Time) *metallbAPI {
	held := leftStatus(l2Statuses, "l2-a", "node-1", api.Name{Namespace: "shop", Name: "web"})
	held.SetCreationTimestamp(metav1.NewTime(since))
	held.SetAnnotations(map[string]string{kube.AnnotationAddresses: "192.0.2.2"})
	held.Object["status"].(map[string]any)["interfaces"] = []any{map[string]any{"name": "eth0"}}
	state := metallbObject("v1beta1", "ConfigurationState", "speaker-node-1", nil)
	gone := metallbObject("v1beta1", "ConfigurationState", "speaker-node-9", nil)
	for _, o := range []*unstructured.Unstructured{state, gone} {
		o.Object["status"] = map[string]any{"conditions": []any{map[string]any{
			"type": conditionGranted, "status": "True", "message": "", "reason": "Majority", "lastTransitionTime": since.Format(time.RFC3339),
		}}}
	}
	maps.Copy(state.Object["status"].(map[string]any), map[string]any{"result": "Invalid", "errorSummary": "one\ntwo"})
	stray := metallbObject("v1beta1", "L2Advertisement", "lost", map[string]any{})
	stray.SetNamespace("shop")
	server := newMetallbAPI(
		gone,
		metallbObject("v1beta1", "IPAddressPool", "default", map[string]any{"addresses": []any{"192.0.2.0/24"}}),
		metallbObject("v1beta1", "L2Advertisement", "all", map[string]any{}), held, state, stray,
	)
	server.PrependReactor("list", "bgppeers", func(clienttesting.Action) (bool, runtime.Object, error) { // a cluster without this kind
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Group: metallbGroup, Resource: "bgppeers"}, "")
	})
	return server
}

// TestAnnounced: the API server's objects become a report. It has the addresses with the node in their status object, a
// waiting Service, and a Service with an address of an outside balancer. It leaves out other Services, and includes the
// ConfigurationStates.
func TestAnnounced(t *testing.T) {
	balanced := func(name string, addrs ...string) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
		for _, a := range addrs {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		return s
	}
	class, outside := balanced("class", "192.0.2.9"), balanced("outside", "192.0.2.8")
	class.Spec.LoadBalancerClass = new("of.another/one")
	outside.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
	full := balanced("full")
	full.Status.Conditions = []metav1.Condition{{Type: conditionMissing, Status: metav1.ConditionTrue, Message: "no available IPs"}}
	controller := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "fairway-controller", Labels: map[string]string{"app.kubernetes.io/name": "fairway-controller"}}}
	client := fake.NewClientset(controller,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		balanced("web", "192.0.2.1", "192.0.2.2"), balanced("new"), full, class, outside,
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.5"}}},
		},
	)
	since := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	a := &Announced{client: client, custom: announcedAPI(since), namespace: "metallb-system"}
	seen, err := a.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := seen.Addresses
	var lines []string
	for _, r := range all {
		line := fmt.Sprintf("%v %s, not on %d: %s", r.Services, r.Address, len(r.Elsewhere), r.Reason)
		for _, n := range r.Announced {
			line += fmt.Sprintf("%s %s %v %v", n.Protocol, n.Node, n.By, n.Since.Equal(since))
		}
		lines = append(lines, line)
	}
	got := strings.Join(append(lines, seen.Problems...), "\n")
	for _, want := range []string{"[shop/new] , not on 0: it has no address yet [", "[shop/full] , not on 0: it has no address yet: no available IPs", "[shop/web] 192.0.2.1, not on 2: node-1 may: ", "[shop/web] 192.0.2.2, not on 1: l2 node-1 [eth0] true", "speaker-node-1: one; two", "L2Advertisement shop/lost has no effect", "[shop/outside] 192.0.2.8, not on 0: outside  [] false"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwithout %s", got, want)
		}
	}
	if want := (announce.Standing{Node: "node-1", Up: true, Since: since}); len(seen.Speakers) != 1 || seen.Speakers[0] != want {
		t.Errorf("speakers: %v, want %v", seen.Speakers, want)
	}
	one, err := a.Report(t.Context(), "shop/new")
	if err != nil || len(one.Addresses) != 1 || one.Addresses[0].Services[0] != "shop/new" {
		t.Errorf("of one Service: %v, %v", one.Addresses, err)
	}
	if len(all) != 5 {
		t.Errorf("%d reports, want 5:\n%s", len(all), got)
	}
	if err := client.AppsV1().Deployments("kube-system").Delete(t.Context(), "fairway-controller", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	one, err = a.Report(t.Context(), "shop/new")
	if err != nil || !strings.Contains(one.Addresses[0].Reason, "Fairway's controller, which gives addresses, does not run here [fairway upgrade") {
		t.Errorf("without a controller: %v, %v", one.Addresses, err)
	}
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	})
	if _, err := a.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "use your kubeconfig") {
		t.Errorf("without the rights: %v", err)
	}
}
