package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// statuses is an API server with two owners of Services' statuses. One writes the addresses, and the other a condition.
type statuses struct {
	client     *fake.Clientset
	addresses  *StatusWriter[[]string]
	conditions *StatusWriter[string]
}

func startStatuses(t *testing.T, log *slog.Logger, objects ...runtime.Object) *statuses {
	t.Helper()
	s := &statuses{client: fake.NewClientset(objects...)}
	s.addresses = NewStatusWriter(StatusConfig[[]string]{
		Log: log, Owner: "fairway-addresses", Kind: "services",
		Have: func(name api.Name) ([]string, bool) {
			o, ok := s.get(name)
			return addressesOf(o), ok
		},
		Apply: func(ctx context.Context, name api.Name, want []string, how metav1.ApplyOptions) error {
			status := applycorev1.LoadBalancerStatus()
			for _, a := range want {
				status.WithIngress(applycorev1.LoadBalancerIngress().WithIP(a))
			}
			o := applycorev1.Service(name.Name, name.Namespace).WithStatus(applycorev1.ServiceStatus().WithLoadBalancer(status))
			_, err := s.client.CoreV1().Services(name.Namespace).ApplyStatus(ctx, o, how)
			return err
		},
	})
	s.conditions = NewStatusWriter(StatusConfig[string]{
		Log: log, Owner: "fairway-conditions", Kind: "services",
		Have: func(name api.Name) (string, bool) {
			o, ok := s.get(name)
			return conditionOf(o), ok
		},
		Apply: func(ctx context.Context, name api.Name, want string, how metav1.ApplyOptions) error {
			c := applymetav1.Condition().WithType("Announced").WithStatus(metav1.ConditionTrue).WithReason(want)
			o := applycorev1.Service(name.Name, name.Namespace).WithStatus(applycorev1.ServiceStatus().WithConditions(c))
			_, err := s.client.CoreV1().Services(name.Namespace).ApplyStatus(ctx, o, how)
			return err
		},
	})
	runUntilEnd(t, s.addresses)
	runUntilEnd(t, s.conditions)
	return s
}

// get reads a Service past the log of actions.
func (s *statuses) get(name api.Name) (*corev1.Service, bool) {
	o, err := s.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("services"), name.Namespace, name.Name)
	if err != nil {
		return &corev1.Service{}, false
	}
	return o.(*corev1.Service), true
}

func addressesOf(o *corev1.Service) []string {
	var all []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		all = append(all, in.IP)
	}
	return all
}

func conditionOf(o *corev1.Service) string {
	for _, c := range o.Status.Conditions {
		if c.Type == "Announced" {
			return c.Reason
		}
	}
	return ""
}

// writes counts the writes of a Service's status.
func (s *statuses) writes(name api.Name) int {
	n := 0
	for _, a := range s.client.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok && p.GetName() == name.Name {
			n++
		}
	}
	return n
}

// settle waits until all earlier addresses have been handled. The addresses of the Service "last" are set and written
// after them.
func (s *statuses) settle(t *testing.T, address string) {
	t.Helper()
	s.addresses.Set(svcName("last"), []string{address})
	s.expect(t, "the last address", svcName("last"), []string{address}, "")
}

func (s *statuses) expect(t *testing.T, when string, name api.Name, addresses []string, condition string) {
	t.Helper()
	until(t, when, func() bool {
		o, _ := s.get(name)
		return slices.Equal(addressesOf(o), addresses) && conditionOf(o) == condition
	})
}

// TestStatusOwners: each owner's fields are written, changed and removed without a change of the other owner's fields.
func TestStatusOwners(t *testing.T) {
	web := svcName("web")
	s := startStatuses(t, slog.New(slog.DiscardHandler), apiService("web", "10.96.0.1"))
	s.addresses.Set(web, []string{"192.0.2.1", "192.0.2.2"})
	s.conditions.Set(web, "ByARP")
	s.expect(t, "both statuses", web, []string{"192.0.2.1", "192.0.2.2"}, "ByARP")
	s.addresses.Set(web, []string{"192.0.2.2"})
	s.expect(t, "another address", web, []string{"192.0.2.2"}, "ByARP")
	s.conditions.Set(web, "ByBGP")
	s.expect(t, "another condition", web, []string{"192.0.2.2"}, "ByBGP")
	s.addresses.Set(web, nil)
	s.expect(t, "no address", web, nil, "ByBGP")
	owners := map[string]bool{}
	o, _ := s.get(web)
	for _, f := range o.ManagedFields {
		owners[f.Manager] = true
	}
	if !owners["fairway-conditions"] {
		t.Errorf("owners of fields: %v", owners)
	}
	if got := o.Spec.ClusterIP; got != "10.96.0.1" {
		t.Errorf("the spec has changed: clusterIP %q", got)
	}
}

// TestStatusIsLevel: a correct status is not written, and a status that another program changes is written again. A
// failed write is repeated until it succeeds, and a deleted Service is ignored.
func TestStatusIsLevel(t *testing.T) {
	web, gone := svcName("web"), svcName("gone")
	have := apiService("web", "10.96.0.1")
	have.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	log := &testnet.Log{}
	s := startStatuses(t, slog.New(slog.NewTextHandler(log, nil)), have, apiService("last", "10.96.0.2"))
	s.addresses.Set(web, []string{"192.0.2.1"})
	s.addresses.Set(gone, []string{"192.0.2.9"})
	s.settle(t, "192.0.2.101")
	for _, name := range []api.Name{web, gone} {
		if n := s.writes(name); n != 0 {
			t.Errorf("%d writes of %v, which is as it should be or gone", n, name)
		}
	}

	failures := make(chan struct{}, 2)
	failures <- struct{}{}
	failures <- struct{}{}
	s.client.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-failures:
			return true, nil, apierrors.NewInternalError(errors.New("injected"))
		default:
			return false, nil, nil
		}
	})
	other, _ := s.get(web)
	other = other.DeepCopy()
	other.Status.LoadBalancer.Ingress[0].IP = "203.0.113.1"
	if _, err := s.client.CoreV1().Services("default").UpdateStatus(t.Context(), other, metav1.UpdateOptions{FieldManager: "another"}); err != nil {
		t.Fatal(err)
	}
	s.addresses.Changed(web)
	s.expect(t, "our address to be back", web, []string{"192.0.2.1"}, "")
	if n := log.Count("cannot write a status"); n != 1 {
		t.Errorf("%d log lines of one failure that lasted, want 1", n)
	}
	if n := s.writes(web); n != 3 {
		t.Errorf("%d writes, want two that failed and one that did not", n)
	}
	s.addresses.Forget(web)
	if _, err := s.client.CoreV1().Services("default").UpdateStatus(t.Context(), other, metav1.UpdateOptions{FieldManager: "another"}); err != nil {
		t.Fatal(err)
	}
	s.addresses.Changed(web)
	s.settle(t, "192.0.2.102")
	if n := s.writes(web); n != 3 {
		t.Errorf("%d writes after Forget, want 3", n)
	}
}
