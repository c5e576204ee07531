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

// A Kind declares one kind of API object: the way to list and watch it, and the value V that the feed keeps of each
// object. To read another kind, declare it and open it (doc.go).
type Kind[O metav1.Object, V any] struct {
	Name   string // the resource, in logs and metrics: "services"
	Object runtime.Object
	Client ListWatcher
	Only   metav1.ListOptions // only the selectors count
	// Trim returns the value of an object; nil: nothing of the object is needed. It runs without a lock, while a list
	// streams in.
	Trim func(O) *V
	// Trigger returns the time of the change's cause, in nanoseconds since 1970; 0: unknown. nil: always unknown.
	Trigger func(O) int64
	// Owner returns the owner of a value, which is the key of Feed.Of. nil: no index.
	Owner func(*V) api.Name
	// Without is, for the log, the effect of a kind that cannot be read.
	Without string
	// Listed is called once, after the first list and without a lock. It may be nil.
	Listed func(*Feed[V])
	// Replaced is called for each new value, without a lock. It may be nil.
	Replaced func(*V)
}

// A Feed keeps all objects of one kind, each trimmed to a V, and notifies subscribers of changes. It is the store of a
// client-go reflector. An informer would keep a second queue of whole objects, which costs too much memory with 50,000
// Services.
//
// Each feed has its own lock, so a long list of one kind delays no other kind. Values are immutable, and are handed out
// without a copy. All methods may be called by any goroutine.
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
	byOwner    map[api.Name][]*V // lists are never changed in place
	followers  []func(name api.Name, old, new *V, trigger int64)
	onProgress []func() // called after each progress
}

// The progress of a feed.
const (
	notListed int32 = iota
	refused         // the API server does not have the kind, or we have no right to read it
	listed          // the first list is complete
)

// newFeed returns an empty feed.
func newFeed[O metav1.Object, V any](log *slog.Logger, k Kind[O, V]) *Feed[V] {
	f := &Feed[V]{
		name: k.Name, without: k.Without, log: log,
		owner: k.Owner, first: k.Listed, replaced: k.Replaced,
		all: map[api.Name]*V{}, byOwner: map[api.Name][]*V{},
	}
	f.trim = func(obj any) (*V, int64) {
		o, ok := obj.(O)
		if !ok {
			return nil, 0
		}
		v := k.Trim(o)
		if v == nil || k.Trigger == nil {
			return v, 0
		}
		return v, k.Trigger(o)
	}
	return f
}

// Get returns the value with a name, and whether there is one.
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

// Of returns the values of an owner, in no order. The caller must not change the list.
func (f *Feed[V]) Of(owner api.Name) []*V {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byOwner[owner]
}

// Len returns the number of values.
func (f *Feed[V]) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// Follow calls changed for each existing value, with old nil, and then for each change. At most one of old and new is
// nil. The feed's lock is held: changed may mark subscriptions, but must not read the feed.
func (f *Feed[V]) Follow(changed func(name api.Name, old, new *V, trigger int64)) {
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

// Marks makes the subscription mark the names of changed objects. It returns the feed's side of a gate.
func (f *Feed[V]) Marks(s *Subscription) Input {
	f.Follow(func(name api.Name, _, _ *V, _ int64) { s.Mark(name, 0) })
	return f.Gates(s)
}

// Gates makes the subscription check its gate when the feed is listed or refused. It returns the feed's side of a gate.
func (f *Feed[V]) Gates(s *Subscription) Input {
	f.OnSettle(s.Check)
	return f.Input()
}

// put stores v (nil: gone) and reports whether the stored value changed. f.mu is held.
func (f *Feed[V]) put(name api.Name, v *V, trigger int64) bool {
	old := f.all[name]
	switch {
	case v == nil && old == nil:
		return false
	case v == nil:
		delete(f.all, name)
	case old != nil && reflect.DeepEqual(old, v):
		return false // only unused parts of the object have changed
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

// index updates byOwner. A value may get another owner, because labels can be edited.
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

// OnSettle calls check, without a lock, when the feed is listed or refused.
func (f *Feed[V]) OnSettle(check func()) {
	f.mu.Lock()
	f.onProgress = append(f.onProgress, check)
	f.mu.Unlock()
}

// setProgress stores the progress and checks the gates that depend on it. A listed feed stays listed.
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

// Input returns the feed's side of a gate.
func (f *Feed[V]) Input() Input {
	return Input{f.name, f.without, f.progress.Load, f.Len}
}

// trimmed replaces an API object on its way to the feed. While the first list streams in, the memory holds one for each
// object of the cluster.
type trimmed[V any] struct {
	name    api.Name
	value   *V
	trigger int64
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, because the reflector asks for the objects' names.
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
