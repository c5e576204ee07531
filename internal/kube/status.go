package kube

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/text"
)

// The pauses and deadlines of writes.
const (
	// statusPause is the shortest time between two writes, because all nodes share one API server.
	statusPause = 20 * time.Millisecond
	// minRewritePause is the shortest time between two writes of one object, so that two programs with different opinions
	// do not keep the API server busy. It doubles while writes fail.
	minRewritePause = time.Second
	maxRewritePause = time.Minute
	// StatusTimeout keeps one request from delaying all others.
	StatusTimeout = 10 * time.Second
)

// removeTimeout is the longest time in which a StatusWriter removes its objects at its end.
const removeTimeout = 2 * time.Second

// StatusConfig describes the writes of a StatusWriter. The fields before Make are required. With Make the writer
// creates missing objects. With Delete and Names it removes unwanted objects.
type StatusConfig[V any] struct {
	Log *slog.Logger
	// Owner is the field manager. The API server keeps one owner for each field, and removes fields that their owner no
	// longer sends. Each StatusWriter of a kind has its own owner.
	Owner string
	Kind  string // of the objects, for the log: "services"
	// Have returns the owner's part of the last status that was read; false: the object does not exist.
	Have func(api.Name) (V, bool)
	// Apply writes the owner's part of a status by server-side apply.
	Apply func(ctx context.Context, name api.Name, want V, how metav1.ApplyOptions) error

	// Share returns the namespace that a write is for; nil: the object's. Writes for different namespaces take turns.
	Share func(want V) string
	// Make reports whether an object that Have does not know is known to be missing.
	Make func() bool
	// Delete removes an object. SetAll, ChangedAll, and the end of Run need it.
	Delete func(ctx context.Context, name api.Name) error
	// Names returns the names of the existing objects.
	Names func() []api.Name
}

// A StatusWriter keeps one owner's fields in the statuses of objects as wanted. It is level-triggered: it writes until
// Have returns the wanted status, and writes again if another program changes the status. Namespaces take turns, so a
// namespace with many changes does not delay others. Its methods may be called by any goroutine, and do not wait for the
// API server.
type StatusWriter[V any] struct {
	cfg   StatusConfig[V]
	queue workqueue.TypedRateLimitingInterface[api.Name]

	mu       sync.Mutex // may be taken while the queue's lock is held, not the other way round
	wants    map[api.Name]*wantedStatus[V]
	complete bool // objects that are not in wants are removed
}

// wantedStatus is the wanted status of one object. It is guarded by StatusWriter.mu.
type wantedStatus[V any] struct {
	value   V
	written time.Time // the last successful write; zero: no write yet
	failed  bool      // the last write failed and was logged
}

// NewStatusWriter returns a StatusWriter without wanted statuses. The caller must call Run.
func NewStatusWriter[V any](cfg StatusConfig[V]) *StatusWriter[V] {
	w := &StatusWriter[V]{cfg: cfg, wants: map[api.Name]*wantedStatus[V]{}}
	turns := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[api.Name]{Queue: fair.NewQueue(w.share)})
	w.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[api.Name](minRewritePause, maxRewritePause),
		workqueue.TypedRateLimitingQueueConfig[api.Name]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[api.Name]{Queue: turns}),
		})
	return w
}

// share returns the namespace that pays for the write of an object. The queue calls it with the queue's lock held.
func (w *StatusWriter[V]) share(name api.Name) string {
	if w.cfg.Share == nil {
		return name.Namespace
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.wants[name]; s != nil {
		return w.cfg.Share(s.value)
	}
	return name.Namespace
}

// Set sets the owner's part of an object's status.
func (w *StatusWriter[V]) Set(name api.Name, want V) {
	w.mu.Lock()
	if s := w.wants[name]; s != nil {
		s.value = want
	} else {
		w.wants[name] = &wantedStatus[V]{value: want}
	}
	w.mu.Unlock()
	w.queue.Add(name)
}

// SetAll replaces all wanted objects. Unwanted objects are removed.
func (w *StatusWriter[V]) SetAll(wants map[api.Name]V) {
	w.mu.Lock()
	var look []api.Name
	for name := range w.wants {
		if _, ok := wants[name]; !ok {
			delete(w.wants, name)
			look = append(look, name)
		}
	}
	for name, want := range wants {
		switch s := w.wants[name]; {
		case s == nil:
			w.wants[name] = &wantedStatus[V]{value: want}
		case reflect.DeepEqual(s.value, want):
			continue
		default:
			s.value = want
		}
		look = append(look, name)
	}
	first := !w.complete
	w.complete = true
	w.mu.Unlock()
	for _, name := range look {
		w.queue.Add(name)
	}
	if first {
		w.ChangedAll()
	}
}

// ChangedAll makes the writer compare all objects again, because the list of existing objects may be known now.
func (w *StatusWriter[V]) ChangedAll() {
	w.mu.Lock()
	names := slices.Collect(maps.Keys(w.wants))
	w.mu.Unlock()
	if w.cfg.Names != nil {
		names = append(names, w.cfg.Names()...)
	}
	for _, name := range names {
		w.queue.Add(name)
	}
}

// Forget stops writing an object. Its status stays. To remove the owner's fields, Set an empty status.
func (w *StatusWriter[V]) Forget(name api.Name) {
	w.mu.Lock()
	delete(w.wants, name)
	w.mu.Unlock()
}

// Changed makes the writer compare an object again, because Have may return another status.
func (w *StatusWriter[V]) Changed(name api.Name) { w.queue.Add(name) }

// Run writes until ctx ends, which is no error. With Delete it then removes all objects, for a short time.
func (w *StatusWriter[V]) Run(ctx context.Context) error {
	defer w.removeAll(ctx)
	defer w.queue.ShutDown()
	defer context.AfterFunc(ctx, w.queue.ShutDown)()
	for {
		name, ended := w.queue.Get()
		if ended {
			return nil
		}
		wrote := w.writeOne(ctx, name)
		w.queue.Done(name)
		if wrote {
			select {
			case <-ctx.Done():
			case <-time.After(statusPause):
			}
		}
	}
}

// writeOne writes the status of one object if it differs from the wanted status. It reports whether it sent a request.
func (w *StatusWriter[V]) writeOne(ctx context.Context, name api.Name) bool {
	w.mu.Lock()
	s := w.wants[name]
	if s == nil {
		complete := w.complete
		w.mu.Unlock()
		return w.deleteUnwanted(ctx, name, complete)
	}
	want, rest := s.value, minRewritePause-time.Since(s.written)
	w.mu.Unlock()
	have, exists := w.cfg.Have(name)
	if !exists && (w.cfg.Make == nil || !w.cfg.Make()) || exists && reflect.DeepEqual(have, want) {
		w.queue.Forget(name) // Changed brings it back
		return false
	}
	if rest > 0 {
		w.queue.AddAfter(name, rest) // the last write may not have been read yet
		return false
	}
	err := w.apply(ctx, name, want)
	w.mu.Lock()
	first := err != nil && !s.failed
	s.failed = err != nil
	if err == nil {
		s.written = time.Now()
	}
	w.mu.Unlock()
	switch {
	case err == nil:
		w.queue.Forget(name)
		w.queue.AddAfter(name, minRewritePause) // to check the result
	case apierrors.IsNotFound(err), ctx.Err() != nil:
		w.queue.Forget(name)
	default:
		if first {
			w.cfg.Log.Warn("cannot write a status, will try again", "kind", w.cfg.Kind, "name", name.String(), "owner", w.cfg.Owner, "err", text.OneLine(err))
		}
		w.queue.AddRateLimited(name)
	}
	return true
}

// deleteUnwanted removes an unwanted object, if all wanted objects are known. It reports whether it sent a request.
func (w *StatusWriter[V]) deleteUnwanted(ctx context.Context, name api.Name, complete bool) bool {
	_, exists := w.cfg.Have(name)
	if !complete || !exists {
		w.queue.Forget(name)
		return false
	}
	switch err := w.remove(ctx, name); {
	case err == nil, ctx.Err() != nil:
		w.queue.Forget(name)
		w.queue.AddAfter(name, minRewritePause) // to check the result
	default:
		if w.queue.NumRequeues(name) == 0 {
			w.cfg.Log.Warn("cannot remove an object, will try again", "kind", w.cfg.Kind, "name", name.String(), "err", text.OneLine(err))
		}
		w.queue.AddRateLimited(name)
	}
	return true
}

func (w *StatusWriter[V]) remove(ctx context.Context, name api.Name) error {
	ctx, cancel := context.WithTimeout(ctx, StatusTimeout)
	defer cancel()
	return NotGone(w.cfg.Delete(ctx, name))
}

// NotGone returns the error of a delete request; nil if the object did not exist.
func NotGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removeAll removes the writer's objects, after the end of ctx.
func (w *StatusWriter[V]) removeAll(ctx context.Context) {
	if w.cfg.Delete == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	names := w.cfg.Names()
	w.mu.Lock()
	for name, s := range w.wants {
		if !s.written.IsZero() && !slices.Contains(names, name) {
			names = append(names, name) // created a moment ago
		}
	}
	w.mu.Unlock()
	for _, name := range names {
		if w.remove(ctx, name) != nil {
			return // the next process finds the remaining objects
		}
	}
}

func (w *StatusWriter[V]) apply(ctx context.Context, name api.Name, want V) error {
	ctx, cancel := context.WithTimeout(ctx, StatusTimeout)
	defer cancel()
	// Force takes back our fields from another program. The program loses no other field.
	return w.cfg.Apply(ctx, name, want, metav1.ApplyOptions{FieldManager: w.cfg.Owner, Force: true})
}
