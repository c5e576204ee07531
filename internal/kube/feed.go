package kube

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/fairway-net/fairway/internal/service"
)

// A feed keeps all objects of one kind, cut to V. It is the store behind a client-go
// reflector, instead of an informer: an informer keeps a second queue of whole
// objects, which a cluster of 50,000 Services pays for with memory.
//
// Values are immutable, so that they can be handed out without a copy.
type feed[V any] struct {
	src *Source
	// cut makes a value of an API object; nil if the node has no use for it. trigger
	// is when somebody caused the change, in nanoseconds since 1970; 0: not known.
	cut func(obj any) (v *V, trigger int64)
	// changed is told with src.mu held what differs; old or new may be nil.
	changed func(name service.Name, old, new *V, trigger int64)
	// replaced, if set, is told without the lock that there is a value v.
	replaced func(v *V)

	all    map[service.Name]*V // guarded by src.mu
	listed bool                // guarded by src.mu: the first list is in
}

// slim stands for an API object between the wire and the feed: while the first list
// streams in, there are as many as the cluster has objects.
type slim[V any] struct {
	name    service.Name
	value   *V
	trigger int64
}

// GetObjectMeta makes it a metav1.ObjectMetaAccessor: the reflector asks for the names of
// what it collects.
func (s *slim[V]) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}
}

func (f *feed[V]) slim(obj any) (*slim[V], error) {
	switch o := obj.(type) {
	case *slim[V]:
		return o, nil
	case cache.DeletedFinalStateUnknown:
		return f.slim(o.Obj)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("API server sent a %T where an object was expected", obj)
	}
	s := &slim[V]{name: service.Name{Namespace: meta.GetNamespace(), Name: meta.GetName()}}
	s.value, s.trigger = f.cut(obj)
	return s, nil
}

// Transformer lets the reflector cut objects while a list streams in
// (cache.TransformingStore).
func (f *feed[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return f.slim(obj) }
}

// Add is a part of cache.ReflectorStore.
func (f *feed[V]) Add(obj any) error { return f.Update(obj) }

// Update is a part of cache.ReflectorStore.
func (f *feed[V]) Update(obj any) error {
	s, err := f.slim(obj)
	if err != nil {
		return err
	}
	f.src.mu.Lock()
	fresh := f.put(s.name, s.value, s.trigger)
	f.src.mu.Unlock()
	f.tell(fresh)
	return nil
}

// Delete is a part of cache.ReflectorStore.
func (f *feed[V]) Delete(obj any) error {
	s, err := f.slim(obj)
	if err != nil {
		return err
	}
	f.src.mu.Lock()
	f.put(s.name, nil, 0)
	f.src.mu.Unlock()
	return nil
}

// Replace is a part of cache.ReflectorStore: the first list, and every later one
// after a watch that could not be continued. What is in it as it was before has not
// changed.
func (f *feed[V]) Replace(list []any, _ string) error {
	seen := make(map[service.Name]*slim[V], len(list))
	for _, obj := range list {
		s, err := f.slim(obj)
		if err != nil {
			return err
		}
		seen[s.name] = s
	}
	var fresh []*V
	f.src.mu.Lock()
	for name, s := range seen {
		if v := f.put(name, s.value, s.trigger); v != nil {
			fresh = append(fresh, v)
		}
	}
	for name := range f.all {
		if seen[name] == nil {
			f.put(name, nil, 0)
		}
	}
	first := !f.listed
	f.listed = true
	f.src.mu.Unlock()
	for _, v := range fresh {
		f.tell(v)
	}
	if first {
		f.src.firstList()
	}
	return nil
}

// Resync is a part of cache.ReflectorStore. There is nothing to repeat: Take is
// level-triggered.
func (f *feed[V]) Resync() error { return nil }

// put stores v (nil: gone) and returns it if that changed something. src.mu is held.
func (f *feed[V]) put(name service.Name, v *V, trigger int64) *V {
	old := f.all[name]
	switch {
	case v == nil && old == nil:
		return nil
	case v == nil:
		delete(f.all, name)
	case old != nil && reflect.DeepEqual(old, v):
		return nil // only something that we do not keep has changed
	default:
		f.all[name] = v
	}
	f.changed(name, old, v, trigger)
	return v
}

func (f *feed[V]) tell(v *V) {
	if v != nil && f.replaced != nil {
		f.replaced(v)
	}
}
