package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/fairway-net/fairway/internal/api"
)

// A kind declares one kind of API object: how it is listed and watched, and the value
// V that is kept of each object. To read another kind, declare it and open it (doc.go).
type kind[O metav1.Object, V any] struct {
	name   string // the resource, as logs and metrics name it: "services"
	object runtime.Object
	client listWatcher        // of
	only   metav1.ListOptions // its selectors count, the rest is ignored
	// trim makes the value of an object; nil: the node has no use for the object. It runs
	// while a list streams in, without a lock.
	trim func(O) *V
	// trigger returns when the change was caused, in nanoseconds since 1970; 0: unknown.
	// nil: always unknown.
	trigger func(O) int64
	// owner names the object that a value belongs to: the key of Feed.Of. nil: no index.
	owner func(*V) api.Name
	// without is, for the log, what happens as long as this kind cannot be read.
	without string
	// listed is called once, after the first list and without a lock; nil: nothing is.
	listed func(*Feed[V])
	// replaced is called without a lock for each new value; nil: nothing is.
	replaced func(*V)
}

// A Feed keeps all objects of one kind, each trimmed to a V, and notifies subscribers of
// changes. It is the store behind a client-go reflector, instead of an informer: an
// informer keeps a second queue of whole objects, which a cluster of 50,000 Services pays
// for with memory.
//
// Each feed has a lock of its own, so that a long list of one kind holds up no other kind.
// Values are immutable, so that they can be handed out without a copy. All methods may be
// called by any goroutine.
type Feed[V any] struct {
	name, without string
	log           *slog.Logger
	trim          func(obj any) (v *V, trigger int64)
	owner         func(*V) api.Name
	first         func(*Feed[V])
	replaced      func(*V)
	start         func() // starts the reflector, at the first call
	guard         *guard // nil: every list is believed

	progress atomic.Int32

	mu         sync.Mutex
	all        map[api.Name]*V
	byOwner    map[api.Name][]*V // the lists are never changed in place
	followers  []func(name api.Name, old, new *V, trigger int64)
	onProgress []func() // called when the feed gets further
}

// How far a feed is.
const (
	notListed int32 = iota
	refused         // the API server does not have the kind, or we have no right to read it
	listed          // the first list is in
)

// newFeed returns a feed that nothing fills yet.
func newFeed[O metav1.Object, V any](log *slog.Logger, k kind[O, V]) *Feed[V] {
	f := &Feed[V]{
		name: k.name, without: k.without, log: log,
		owner: k.owner, first: k.listed, replaced: k.replaced,
		all: map[api.Name]*V{}, byOwner: map[api.Name][]*V{},
	}
	f.trim = func(obj any) (*V, int64) {
		o, ok := obj.(O)
		if !ok {
			return nil, 0
		}
		v := k.trim(o)
		if v == nil || k.trigger == nil {
			return v, 0
		}
		return v, k.trigger(o)
	}
	return f
}

// Get returns the value of that name, if there is one.
func (f *Feed[V]) Get(name api.Name) (*V, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := f.all[name]
	return v, ok
}

// All returns all values, in no order.
func (f *Feed[V]) All() []*V {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*V, 0, len(f.all))
	for _, v := range f.all {
		out = append(out, v)
	}
	return out
}

// Names returns the names of all values, in no order.
func (f *Feed[V]) Names() []api.Name {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.all))
}

// Of returns the values that belong to an owner, in no order. The caller must not change
// the list.
func (f *Feed[V]) Of(owner api.Name) []*V {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byOwner[owner]
}

// Len returns how many values there are.
func (f *Feed[V]) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// follow calls changed for each value that there is, with old nil, and then for each
// change; old or new may be nil, not both. changed runs with the feed's lock held: it may
// mark subscriptions, but must not read the feed.
func (f *Feed[V]) follow(changed func(name api.Name, old, new *V, trigger int64)) {
	f.mu.Lock()
	for name, v := range f.all {
		changed(name, nil, v, 0)
	}
	f.followers = append(f.followers, changed)
	f.mu.Unlock()
	if f.start != nil {
		f.start()
	}
}

// marks lets a subscription mark the names of what changes, and returns the feed as its
// gate sees it.
func (f *Feed[V]) marks(s *Subscription) input {
	f.follow(func(name api.Name, _, _ *V, _ int64) { s.mark(name, 0) })
	return f.gates(s)
}

// gates returns the feed as the gate of a subscription sees it, which looks again when the feed
// is listed or refused.
func (f *Feed[V]) gates(s *Subscription) input {
	f.onSettle(s.check)
	return f.input()
}

// put stores v (nil: gone) and reports whether that changed something. f.mu is held.
func (f *Feed[V]) put(name api.Name, v *V, trigger int64) bool {
	old := f.all[name]
	switch {
	case v == nil && old == nil:
		return false
	case v == nil:
		delete(f.all, name)
	case old != nil && reflect.DeepEqual(old, v):
		return false // only something that we do not keep has changed
	default:
		f.all[name] = v
	}
	if f.owner != nil {
		f.index(old, v)
	}
	for _, changed := range f.followers {
		changed(name, old, v, trigger)
	}
	return true
}

// index keeps byOwner. A value may move to another owner: labels can be edited.
func (f *Feed[V]) index(old, new *V) {
	if old != nil {
		owner := f.owner(old)
		rest := slices.DeleteFunc(slices.Clone(f.byOwner[owner]), func(o *V) bool { return o == old })
		if len(rest) == 0 {
			delete(f.byOwner, owner)
		} else {
			f.byOwner[owner] = rest
		}
	}
	if new != nil {
		owner := f.owner(new)
		list := f.byOwner[owner]
		f.byOwner[owner] = append(list[:len(list):len(list)], new)
	}
}

// onSettle lets check be called when the feed is listed or refused, without a lock.
func (f *Feed[V]) onSettle(check func()) {
	f.mu.Lock()
	f.onProgress = append(f.onProgress, check)
	f.mu.Unlock()
}

// setProgress notes how far the feed is and lets the gates that depend on it look again. A feed
// that was listed stays so.
func (f *Feed[V]) setProgress(progress int32) {
	for {
		was := f.progress.Load()
		if was >= progress {
			return
		}
		if f.progress.CompareAndSwap(was, progress) {
			break
		}
	}
	if progress == listed && f.first != nil {
		f.first(f)
	}
	f.mu.Lock()
	checks := slices.Clone(f.onProgress)
	f.mu.Unlock()
	for _, check := range checks {
		check()
	}
}

// refuse notes that the API server refuses to list the kind.
func (f *Feed[V]) refuse() { f.setProgress(refused) }

// input is a feed as a gate sees it.
func (f *Feed[V]) input() input {
	return input{f.name, f.without, f.progress.Load, f.Len}
}

// trimmed stands for an API object between the wire and the feed: while the first list
// streams in, there are as many as the cluster has objects.
type trimmed[V any] struct {
	name    api.Name
	value   *V
	trigger int64
}

// GetObjectMeta makes it a metav1.ObjectMetaAccessor: the reflector asks for the names of
// what it collects.
func (t *trimmed[V]) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: t.name.Namespace, Name: t.name.Name}
}

func (f *Feed[V]) trimObject(obj any) (*trimmed[V], error) {
	switch o := obj.(type) {
	case *trimmed[V]:
		return o, nil
	case cache.DeletedFinalStateUnknown:
		return f.trimObject(o.Obj)
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("API server sent a %T where an object was expected", obj)
	}
	t := &trimmed[V]{name: api.Name{Namespace: meta.GetNamespace(), Name: meta.GetName()}}
	t.value, t.trigger = f.trim(obj)
	return t, nil
}
