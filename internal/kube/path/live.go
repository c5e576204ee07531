package path

import (
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
)

// Live is a subscription to all Services, headless and ExternalName ones included, with their endpoints and the nodes. Its
// dirty names are the names of Services. A change of a node wakes the consumer without a name. The nodes are optional.
type Live struct {
	*kube.Subscription
	Store    *kube.Store // Run reads the API server
	client   kubernetes.Interface
	custom   dynamic.Interface
	services *kube.Feed[path.Service]
	slices   *kube.Feed[service.Slice]
}

// Connect makes a Live of a cluster. It sends nothing until Store.Run.
func Connect(c kube.Connection, log *slog.Logger) (*Live, error) {
	client, custom, err := kube.ConnectBoth(c)
	if err != nil {
		return nil, err
	}
	return Watch(kube.New(kube.Config{Log: log, Client: client, AllNodes: true}), client, custom), nil
}

// Watch makes a Live of a store whose configuration has AllNodes.
func Watch(s *kube.Store, client kubernetes.Interface, custom dynamic.Interface) *Live {
	endpoints := kube.SlicesKind(client)
	endpoints.Only = metav1.ListOptions{} // also those of headless Services
	l := &Live{
		Subscription: s.Subscribe("live"), Store: s, client: client, custom: custom, slices: kube.Open(s, endpoints),
		services: kube.Open(s, kube.Kind[*corev1.Service, path.Service]{
			Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(metav1.NamespaceAll)), Trim: convertService,
		}),
	}
	l.services.Marks(l.Subscription)
	l.slices.Follow(func(_ api.Name, old, new *service.Slice, _ int64) {
		for _, x := range []*service.Slice{old, new} {
			if x != nil {
				l.Mark(x.Service, 0)
			}
		}
	})
	s.NodeFeed().Follow(func(api.Name, *kube.Node, *kube.Node, int64) { l.Notify() })
	s.RangeFeed().Follow(func(api.Name, *kube.ServiceRange, *kube.ServiceRange, int64) { l.Notify() })
	l.Need([]kube.Input{l.services.Gates(l.Subscription), l.slices.Gates(l.Subscription)},
		[]kube.Input{s.NodeFeed().Gates(l.Subscription), s.RangeFeed().Gates(l.Subscription)})
	return l
}

// Service returns the Service of that name, and whether there is one.
func (l *Live) Service(name api.Name) (*path.Service, bool) { return l.services.Get(name) }

// Services returns all Services, in no order.
func (l *Live) Services() []*path.Service { return l.services.All() }

// Slices returns the EndpointSlices of a Service. The caller must not change the list.
func (l *Live) Slices(name api.Name) []*service.Slice { return l.slices.Of(name) }

// Nodes returns all nodes, in no order.
func (l *Live) Nodes() []*kube.Node { return l.Store.NodeFeed().All() }

// Table compiles the table of the node that facts describe.
func (l *Live) Table(facts service.Facts) *service.Table {
	b := service.NewBuilder().Limit(facts.Limits)
	for _, s := range l.services.All() {
		b.Set(service.Compile(s.Service, l.Slices(s.Name), facts))
	}
	return b.Table(facts.Settings)
}
