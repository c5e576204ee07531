package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// A NamedService is a Service as a person sees it, headless or not.
type NamedService struct {
	service.Service
	Headless bool
	External string // the name that an ExternalName Service stands for
}

// Namespaces follows the Services of some namespaces for a person's command. It needs rights in these namespaces only.
type Namespaces struct {
	*Subscription
	store    *Store
	services []*Feed[NamedService]
	slices   []*Feed[service.Slice]
}

// FollowNamespaces asks for each namespace once, so that a missing right is an error of the command. Then Run follows.
// An empty name stands for all namespaces.
func FollowNamespaces(ctx context.Context, log *slog.Logger, client kubernetes.Interface, names []string) (*Namespaces, error) {
	n := &Namespaces{store: New(Config{Log: log, Client: client})}
	n.Subscription = n.store.Subscribe("services")
	var inputs []Input
	for _, name := range names {
		one := metav1.ListOptions{Limit: 1}
		if _, err := client.CoreV1().Services(name).List(ctx, one); err != nil {
			return nil, fmt.Errorf("list Services%s: %w", ofNamespace(name), text.RequestError(err))
		}
		if _, err := client.DiscoveryV1().EndpointSlices(name).List(ctx, one); err != nil {
			return nil, fmt.Errorf("list EndpointSlices%s: %w", ofNamespace(name), text.RequestError(err))
		}
		services := Open(n.store, namedServicesKind(client, name))
		endpoints := SlicesKind(client)
		endpoints.Name, endpoints.Only = "endpointslices"+ofNamespace(name), metav1.ListOptions{}
		endpoints.Client = From(client.DiscoveryV1().EndpointSlices(name))
		slices := Open(n.store, endpoints)
		n.services, n.slices = append(n.services, services), append(n.slices, slices)
		inputs = append(inputs, services.Marks(n.Subscription), slices.Marks(n.Subscription))
	}
	n.Need(inputs, nil)
	return n, nil
}

func ofNamespace(name string) string {
	if name == "" {
		return ""
	}
	return " of namespace " + name
}

func namedServicesKind(c kubernetes.Interface, namespace string) Kind[*corev1.Service, NamedService] {
	return Kind[*corev1.Service, NamedService]{
		Name: "services" + ofNamespace(namespace), Object: &corev1.Service{}, Client: From(c.CoreV1().Services(namespace)),
		Trim: func(o *corev1.Service) *NamedService {
			return &NamedService{*ConvertService(o), o.Spec.ClusterIP == corev1.ClusterIPNone, o.Spec.ExternalName}
		},
	}
}

// Run reads the API server until ctx ends, which is no error.
func (n *Namespaces) Run(ctx context.Context) error { return n.store.Run(ctx) }

// Services returns the Services, sorted by name, and the slices of each.
func (n *Namespaces) Services() (all []*NamedService, endpoints map[api.Name][]*service.Slice) {
	endpoints = map[api.Name][]*service.Slice{}
	for i, feed := range n.services {
		for _, s := range feed.All() {
			all = append(all, s)
			endpoints[s.Name] = n.slices[i].Of(s.Name)
		}
	}
	slices.SortFunc(all, func(a, b *NamedService) int { return a.Name.Compare(b.Name) })
	return all, endpoints
}

// Namespace returns the namespace of the kubeconfig's context, as kubectl's; "default" if there is none.
func (c Connection) Namespace() string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	name, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context}).Namespace()
	if err != nil || name == "" {
		return metav1.NamespaceDefault
	}
	return name
}
