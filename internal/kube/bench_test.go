package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestMemory limits the store's memory for a Service with two endpoints. The API's objects take 5,800 bytes.
func TestMemory(t *testing.T) {
	const n = 10000
	fill := func(n int) any {
		s := newSource(Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), NodeName: "node-1"})
		for i := range n {
			err := errors.Join(feedStore[service.Service]{s.services}.Add(realService(i)), feedStore[service.Slice]{s.slices}.Add(realSlice(i)))
			if err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	fill(1) // allocates the parts that exist once in a process
	testnet.HeapAtMost(t, n, 1180, func() any { return fill(n) })
}

// BenchmarkUpdate measures one changed EndpointSlice until Take returns it.
func BenchmarkUpdate(b *testing.B) {
	s := newSource(Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), NodeName: "node-1"})
	s.ready = true
	slices := [2]*discoveryv1.EndpointSlice{realSlice(1), realSlice(1)}
	slices[1].Endpoints = slices[1].Endpoints[:1]
	store, i := feedStore[service.Slice]{s.slices}, 0
	for b.Loop() {
		if err := store.Update(slices[i%2]); err != nil {
			b.Fatal(err)
		}
		if len(s.Take()) != 1 {
			b.Fatal("nothing taken")
		}
		i++
	}
}

// realService has the fields of a Service in a real cluster. Every string is new, as if decoded from the wire.
func realService(i int) *corev1.Service {
	ip := fmt.Sprintf("10.%d.%d.%d", 96+i/65536, i/256%256, i%256)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i),
			UID: "8f7a1c0e-0000-4000-8000-000000000000", ResourceVersion: fmt.Sprint(i), CreationTimestamp: metav1.Now(),
			Labels:        map[string]string{"app.kubernetes.io/name": fmt.Sprint("app-", i), "app.kubernetes.io/managed-by": fmt.Sprint("helm", i)},
			Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("{%0600d}", i)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(string(make([]byte, 500)))}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprint("app-", i)},
			Ports:    []corev1.ServicePort{{Name: fmt.Sprint("ht", "tp"), Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func realSlice(i int) *discoveryv1.EndpointSlice {
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d-x7k2p", i),
			Labels:        map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)},
			Annotations:   map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(string(make([]byte, 700)))}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(fmt.Sprint("ht", "tp")), Port: &port}},
	}
	for j := range 2 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 200+j, i/256%256, i%256)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", i%500)), Zone: new(fmt.Sprintf("zone-%d", i%3)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("service-%d-6d4cf56db6-x7k2p", i)},
		})
	}
	return s
}
