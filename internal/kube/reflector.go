package kube

import (
	"context"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/fairway-net/fairway/internal/service"
)

// lister is the part of a typed client that a reflector needs.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// A listWatcher lists and watches objects of one kind.
type listWatcher struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// from adapts a client of client-go.
func from[L runtime.Object](c lister[L]) listWatcher {
	return listWatcher{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

// newReflector returns the reflector that updates a feed.
func newReflector[O metav1.Object, V any](s *Store, k kind[O, V], f *Feed[V]) *cache.Reflector {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = k.only.LabelSelector, k.only.FieldSelector
		return o
	}
	pace := &pacer{log: s.cfg.Log, kind: k.name, without: k.without, refused: f.refuse, failed: s.metrics.failed(k.name),
		server: s.server, trouble: &s.troubles}
	if f.guard != nil {
		f.guard.delayNext = func(pause time.Duration) { pace.minPause = pause }
	}
	// A reflector does not stop a watch when the feed refuses its first list.
	stop := func() {}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			stop()
			if err := pace.before(ctx); err != nil {
				return nil, err
			}
			list, err := k.client.list(ctx, narrow(o))
			pace.after(ctx, err, false, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stop()
			if err := pace.before(ctx); err != nil {
				return nil, err
			}
			w, err := k.client.watch(ctx, narrow(o))
			if err == nil {
				stop = w.Stop
			}
			pace.after(ctx, err, true, o.SendInitialEvents != nil)
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), k.object, feedStore[V]{f},
		cache.ReflectorOptions{Name: k.name, Backoff: &reflectorPause})
}

// Many objects contain equal names. Interning keeps one copy of each name.

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
