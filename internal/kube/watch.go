package kube

import (
	"context"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/fairway-net/fairway/internal/service"
)

// The API server leaves out what a service proxy must not touch or has no use for, as
// it does for kube-proxy: Services that are another proxy's, headless Services, and
// the slices of headless Services.
const (
	servicesLabels = "!service.kubernetes.io/service-proxy-name"
	servicesFields = "spec.clusterIP!=" + corev1.ClusterIPNone
	slicesLabels   = "!" + corev1.IsHeadlessService
)

// reflectors returns what keeps the feeds up to date.
func (s *Source) reflectors() []*cache.Reflector {
	client := s.cfg.Client
	node := fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.NodeName).String()
	if s.cfg.AllNodes {
		node = ""
	}
	return []*cache.Reflector{
		reflector(s, "services", &corev1.Service{}, s.services,
			metav1.ListOptions{LabelSelector: servicesLabels, FieldSelector: servicesFields},
			client.CoreV1().Services(metav1.NamespaceAll)),
		reflector(s, "endpointslices", &discoveryv1.EndpointSlice{}, s.slices,
			metav1.ListOptions{LabelSelector: slicesLabels},
			client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)),
		reflector(s, "nodes", &corev1.Node{}, s.nodes,
			metav1.ListOptions{FieldSelector: node},
			client.CoreV1().Nodes()),
	}
}

// lister is the part of a typed client that a reflector needs.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func reflector[L runtime.Object](s *Source, name string, kind runtime.Object, store cache.ReflectorStore, only metav1.ListOptions, client lister[L]) *cache.Reflector {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = only.LabelSelector, only.FieldSelector
		return o
	}
	pace := &pacer{log: s.cfg.Log, kind: name}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err := pace.before(ctx); err != nil {
				return nil, err
			}
			list, err := client.List(ctx, narrow(o))
			pace.after(ctx, err, false, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := pace.before(ctx); err != nil {
				return nil, err
			}
			w, err := client.Watch(ctx, narrow(o))
			pace.after(ctx, err, true, o.SendInitialEvents != nil)
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), kind, store,
		cache.ReflectorOptions{Name: name, Backoff: &reflectorPause})
}

// The same few names come with every object; one copy of each is kept.

func intern(s *string) { *s = unique.Make(*s).Value() }

func internService(svc *service.Service) {
	intern(&svc.Namespace)
	for i := range svc.Ports {
		intern(&svc.Ports[i].Name)
	}
}

func internSlice(s *service.Slice) {
	intern(&s.Namespace)
	s.Service.Namespace = s.Namespace
	for i := range s.Ports {
		intern(&s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		intern(&e.Node)
		for j := range e.NodeHints {
			intern(&e.NodeHints[j])
		}
		for j := range e.ZoneHints {
			intern(&e.ZoneHints[j])
		}
	}
}
