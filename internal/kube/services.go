package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// The API server leaves out the objects that a service proxy does not need, as it does for kube-proxy: Services of
// another proxy, headless Services, and the slices of headless Services.
const (
	servicesLabels = "!service.kubernetes.io/service-proxy-name"
	servicesFields = "spec.clusterIP!=" + corev1.ClusterIPNone
	slicesLabels   = "!" + corev1.IsHeadlessService
)

func servicesKind(c kubernetes.Interface) Kind[*corev1.Service, service.Service] {
	return Kind[*corev1.Service, service.Service]{
		Name: "services", Object: &corev1.Service{}, Client: From(c.CoreV1().Services(metav1.NamespaceAll)),
		Only: metav1.ListOptions{LabelSelector: servicesLabels, FieldSelector: servicesFields},
		Trim: func(o *corev1.Service) *service.Service {
			svc := ConvertService(o)
			internService(svc)
			return svc
		},
	}
}

// SlicesKind declares the EndpointSlices of Services that are not headless.
func SlicesKind(c kubernetes.Interface) Kind[*discoveryv1.EndpointSlice, service.Slice] {
	return Kind[*discoveryv1.EndpointSlice, service.Slice]{
		Name: "endpointslices", Object: &discoveryv1.EndpointSlice{}, Client: From(c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)),
		Only: metav1.ListOptions{LabelSelector: slicesLabels},
		Trim: func(o *discoveryv1.EndpointSlice) *service.Slice {
			slice := ConvertSlice(o)
			if slice.Service.Name == "" {
				return nil // made for another kind of object
			}
			ReadWeights(o, slice)
			internSlice(slice)
			return slice
		},
		Trigger: func(o *discoveryv1.EndpointSlice) int64 {
			t, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
			if err != nil {
				return 0 // most slices do not have it
			}
			return t.UnixNano()
		},
		Owner: func(s *service.Slice) api.Name { return s.Service },
	}
}

// Services is a subscription to the input of a table of Services. It waits for Services and EndpointSlices. The own
// node and the ServiceCIDRs are optional. Dirty names are the names of Services. A change of the node or of
// ServiceCIDRs wakes the consumer without a name.
type Services struct {
	*Subscription
	store   *Store
	feed    *Feed[service.Service]
	changes service.Changes // guarded by Subscription.mu
}

// SubscribeServices returns a subscription for a consumer with this name in the log. All existing Services count as
// changed.
func (s *Store) SubscribeServices(consumer string) *Services {
	v := &Services{Subscription: s.Subscribe(consumer), store: s, feed: s.services}
	s.services.Follow(v.serviceChanged)
	s.slices.Follow(v.sliceChanged)
	s.nodes.Follow(func(name api.Name, _, _ *Node, _ int64) {
		if name.Name == s.cfg.NodeName {
			v.Notify()
		}
	})
	s.ranges.Follow(func(api.Name, *ServiceRange, *ServiceRange, int64) { v.Notify() })
	v.Need(
		[]Input{s.services.Gates(v.Subscription), s.slices.Gates(v.Subscription)},
		[]Input{s.nodes.Gates(v.Subscription), s.ranges.Gates(v.Subscription)},
	)
	return v
}

func (v *Services) serviceChanged(name api.Name, _, _ *service.Service, _ int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Services++
	v.changes.ServicesPending++
	v.markLocked(name, 0)
}

func (v *Services) sliceChanged(_ api.Name, old, new *service.Slice, trigger int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Endpoints++
	v.changes.EndpointsPending++
	if old != nil {
		v.markLocked(old.Service, 0)
		if new == nil {
			v.dirty[old.Service] = 0 // kube-proxy does not time deletions either
		}
	}
	if new != nil {
		v.markLocked(new.Service, trigger)
	}
}

// Take returns the names of Services that have changed, or whose endpoints have changed, since the last Take. The names
// are sorted and include deleted Services. It returns no names before Synced.
func (v *Services) Take() []api.Name {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ready {
		v.changes.ServicesPending, v.changes.EndpointsPending = 0, 0
	}
	return v.take()
}

// Changes returns the numbers of received changes.
func (v *Services) Changes() service.Changes {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changes
}

// Service returns the Service of that name, and whether there is one.
func (v *Services) Service(name api.Name) (*service.Service, bool) {
	return v.feed.Get(name)
}

// Slices returns the EndpointSlices of the Service of that name. The caller must not change the list.
func (v *Services) Slices(name api.Name) []*service.Slice {
	return v.store.slices.Of(name)
}

// Services returns all Services.
func (v *Services) Services() []*service.Service { return v.feed.All() }
