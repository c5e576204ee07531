package kube

import (
	"k8s.io/client-go/tools/cache"

	"github.com/fairway-net/fairway/internal/api"
)

// feedStore is the reflector's side of a Feed: cache.ReflectorStore and cache.TransformingStore.
type feedStore[V any] struct{ *Feed[V] }

// Transformer lets the reflector trim objects while a list streams in.
func (f feedStore[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return f.trimObject(obj) }
}

// Add implements cache.ReflectorStore.
func (f feedStore[V]) Add(obj any) error { return f.Update(obj) }

// Update implements cache.ReflectorStore.
func (f feedStore[V]) Update(obj any) error {
	t, err := f.trimObject(obj)
	if err != nil {
		return err
	}
	f.mu.Lock()
	changed := f.put(t.name, t.value, t.trigger)
	f.mu.Unlock()
	if changed && t.value != nil && f.replaced != nil {
		f.replaced(t.value)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f feedStore[V]) Delete(obj any) error {
	t, err := f.trimObject(obj)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.put(t.name, nil, 0)
	f.mu.Unlock()
	return nil
}

// Replace implements cache.ReflectorStore. It receives the first list, and a later list after each watch that could not
// be continued. Unchanged objects cause no change. Of a doubted list, Replace stores the new objects and returns an
// error, so that the reflector lists again.
func (f feedStore[V]) Replace(list []any, _ string) error {
	seen := make(map[api.Name]*trimmed[V], len(list))
	for _, obj := range list {
		t, err := f.trimObject(obj)
		if err != nil {
			return err
		}
		seen[t.name] = t
	}
	believed := f.guard == nil || f.progress.Load() != listed || f.guard.believe(f.overlap(seen))
	var fresh []*V
	f.mu.Lock()
	for name, t := range seen {
		if f.put(name, t.value, t.trigger) && t.value != nil && f.replaced != nil {
			fresh = append(fresh, t.value)
		}
	}
	for name := range f.all {
		if believed && seen[name] == nil {
			f.put(name, nil, 0)
		}
	}
	f.mu.Unlock()
	for _, v := range fresh {
		f.replaced(v)
	}
	if !believed {
		return errUnconfirmed
	}
	f.setProgress(listed)
	return nil
}

// overlap returns the number of values, and how many of them a list contains.
func (f feedStore[V]) overlap(list map[api.Name]*trimmed[V]) (had, kept int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.all {
		if t := list[name]; t != nil && t.value != nil {
			kept++
		}
	}
	return len(f.all), kept
}

// Resync implements cache.ReflectorStore. It does nothing, because Take is level-triggered.
func (f feedStore[V]) Resync() error { return nil }
