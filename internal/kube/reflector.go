package kube

import (
	"context"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// A ListWatcher lists and watches objects of one kind.
type ListWatcher struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// From adapts a client of client-go.
func From[L runtime.Object](c lister[L]) ListWatcher {
	return ListWatcher{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		watch: c.Watch,
	}
}

// newReflector returns the reflector that updates a feed.
func newReflector[O metav1.Object, V any](s *Store, k Kind[O, V], f *Feed[V]) *cache.Reflector {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = k.Only.LabelSelector, k.Only.FieldSelector
		return o
	}
	pace := newPacer(s, k, f)
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
			list, err := k.Client.list(ctx, narrow(o))
			pace.after(ctx, err, false, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stop()
			if err := pace.before(ctx); err != nil {
				return nil, err
			}
			w, end, err := watchWithin(ctx, watchGrace, narrow(o), k.Client.watch)
			if err == nil {
				stop = end
			}
			pace.after(ctx, err, true, o.SendInitialEvents != nil)
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), k.Object, feedStore[V]{f},
		cache.ReflectorOptions{Name: k.Name, Backoff: &reflectorPause})
}

// watchGrace is how much longer than the requested time a watch may last.
const watchGrace = 30 * time.Second

// watchWithin starts a watch and ends it after the time that it asks the server for, and grace. The server ends a watch
// itself, but a proxy on the way may answer for a server that it does not reach any more, and the objects of one kind
// would stay as they are without a sign. end ends the watch earlier.
func watchWithin(ctx context.Context, grace time.Duration, o metav1.ListOptions, start func(context.Context, metav1.ListOptions) (watch.Interface, error)) (w watch.Interface, end func(), err error) {
	cancel := context.CancelFunc(func() {})
	if o.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, grace+time.Duration(*o.TimeoutSeconds)*time.Second)
	}
	if w, err = start(ctx, o); err != nil {
		cancel()
		return nil, nil, err
	}
	context.AfterFunc(ctx, w.Stop)
	return w, func() { w.Stop(); cancel() }, nil
}

// newPacer returns the pacer of a kind's requests.
func newPacer[O metav1.Object, V any](s *Store, k Kind[O, V], f *Feed[V]) *pacer {
	_, custom := k.Object.(*unstructured.Unstructured)
	return &pacer{log: s.cfg.Log, kind: k.Name, without: k.Without, custom: custom, refused: f.refuse, failed: s.metrics.failed(k.Name),
		server: s.server, trouble: &s.troubles}
}

// Many objects contain equal names. Interning keeps one copy of each name.

// Intern replaces a string by its only copy.
func Intern(s *string) { *s = unique.Make(*s).Value() }

func internService(svc *service.Service) {
	Intern(&svc.Namespace)
	for i := range svc.Ports {
		Intern(&svc.Ports[i].Name)
	}
}

func internSlice(s *service.Slice) {
	Intern(&s.Namespace)
	s.Service.Namespace = s.Namespace
	for i := range s.Ports {
		Intern(&s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		Intern(&e.Node)
		for j := range e.NodeHints {
			Intern(&e.NodeHints[j])
		}
		for j := range e.ZoneHints {
			Intern(&e.ZoneHints[j])
		}
	}
}
