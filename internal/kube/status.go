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
	"github.com/fairway-net/fairway/internal/text"
)

// How fast statuses are written.
const (
	// statusPause is the least time between two writes: all nodes share one API server.
	statusPause = 20 * time.Millisecond
	// statusAgain is the least time between two writes of one object: two programs that
	// disagree about it must not keep the API server busy. It doubles while writes fail.
	statusAgain = time.Second
	statusLast  = time.Minute
	// statusTimeout keeps one request from holding up all others.
	statusTimeout = 10 * time.Second
)

// leaveTimeout is how long a StatusWriter that ends may take to remove what it made.
const leaveTimeout = 2 * time.Second

// StatusConfig says what a StatusWriter writes. The first fields are required; with Make it makes
// objects that are not there, with Delete and Names it removes those that it does not want.
type StatusConfig[V any] struct {
	Log *slog.Logger
	// Owner is the field manager: the API server keeps one owner for each field, and what
	// an owner no longer sends is removed. Each StatusWriter of a kind has its own.
	Owner string
	Kind  string // of the objects, for the log: "services"
	// Have returns the owner's part of a status, as it was last read; false: there is no
	// such object.
	Have func(api.Name) (V, bool)
	// Apply writes the owner's part of a status by server-side apply.
	Apply func(ctx context.Context, name api.Name, want V, how metav1.ApplyOptions) error

	// Make reports whether it is known that an object is not there which Have does not have.
	Make func() bool
	// Delete removes an object. The next three methods need it: SetAll, ChangedAll, and Run at its end.
	Delete func(ctx context.Context, name api.Name) error
	// Names returns the objects that there are.
	Names func() []api.Name
}

// A StatusWriter keeps one owner's fields in the statuses of objects as they are wanted. It
// is level-triggered: it writes until Have says that the status is there, again if another
// program changes it, and nothing if it is there already. Its methods may be called by any
// goroutine, and do not wait for the API server.
type StatusWriter[V any] struct {
	cfg   StatusConfig[V]
	queue workqueue.TypedRateLimitingInterface[api.Name]

	mu       sync.Mutex
	wants    map[api.Name]*wantedStatus[V]
	complete bool // what is not wanted must not be
}

// wantedStatus is what is wanted of one object. It is guarded by StatusWriter.mu.
type wantedStatus[V any] struct {
	value   V
	written time.Time // the last write that succeeded; zero: none
	failed  bool      // the last write failed, which was logged
}

// NewStatusWriter returns a StatusWriter that wants nothing. Run must be called.
func NewStatusWriter[V any](cfg StatusConfig[V]) *StatusWriter[V] {
	return &StatusWriter[V]{
		cfg: cfg, wants: map[api.Name]*wantedStatus[V]{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[api.Name](statusAgain, statusLast)),
	}
}

// Set makes want the owner's part of an object's status, from now on.
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

// SetAll makes these the objects that there are, from now on: others are removed.
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

// ChangedAll lets the writer look again at all objects: it may be known now which there are.
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

// Forget stops caring for an object; its status stays as it is. To remove the owner's
// fields, Set them to nothing.
func (w *StatusWriter[V]) Forget(name api.Name) {
	w.mu.Lock()
	delete(w.wants, name)
	w.mu.Unlock()
}

// Changed lets the writer look again: Have may return something else for an object.
func (w *StatusWriter[V]) Changed(name api.Name) { w.queue.Add(name) }

// Run writes until ctx ends, which is no error. With Delete it removes all objects then, as far as
// that is quickly done.
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

// writeOne writes the status of one object if it is not as it is wanted, and reports whether
// it asked the API server.
func (w *StatusWriter[V]) writeOne(ctx context.Context, name api.Name) bool {
	w.mu.Lock()
	s := w.wants[name]
	if s == nil {
		complete := w.complete
		w.mu.Unlock()
		return w.deleteUnwanted(ctx, name, complete)
	}
	want, rest := s.value, statusAgain-time.Since(s.written)
	w.mu.Unlock()
	have, exists := w.cfg.Have(name)
	if !exists && (w.cfg.Make == nil || !w.cfg.Make()) || exists && reflect.DeepEqual(have, want) {
		w.queue.Forget(name) // Changed brings it back
		return false
	}
	if rest > 0 {
		w.queue.AddAfter(name, rest) // what was written may not have been read yet
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
		w.queue.AddAfter(name, statusAgain) // to see that it is there
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

// deleteUnwanted removes an object that is not wanted, if all that are wanted are known, and reports whether it
// asked the API server.
func (w *StatusWriter[V]) deleteUnwanted(ctx context.Context, name api.Name, complete bool) bool {
	_, exists := w.cfg.Have(name)
	if !complete || !exists {
		w.queue.Forget(name)
		return false
	}
	switch err := w.remove(ctx, name); {
	case err == nil, ctx.Err() != nil:
		w.queue.Forget(name)
		w.queue.AddAfter(name, statusAgain) // to see that it is gone
	default:
		if w.queue.NumRequeues(name) == 0 {
			w.cfg.Log.Warn("cannot remove an object, will try again", "kind", w.cfg.Kind, "name", name.String(), "err", text.OneLine(err))
		}
		w.queue.AddRateLimited(name)
	}
	return true
}

func (w *StatusWriter[V]) remove(ctx context.Context, name api.Name) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return notGone(w.cfg.Delete(ctx, name))
}

// notGone returns the error of a request to delete, but where the object was not there.
func notGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// removeAll removes what the writer made, after ctx.
func (w *StatusWriter[V]) removeAll(ctx context.Context) {
	if w.cfg.Delete == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	names := w.cfg.Names()
	w.mu.Lock()
	for name, s := range w.wants {
		if !s.written.IsZero() && !slices.Contains(names, name) {
			names = append(names, name) // it was made a moment ago
		}
	}
	w.mu.Unlock()
	for _, name := range names {
		if w.remove(ctx, name) != nil {
			return // the next one finds the rest
		}
	}
}

func (w *StatusWriter[V]) apply(ctx context.Context, name api.Name, want V) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	// Force: where another program wrote our field, it is ours again. It loses no other.
	return w.cfg.Apply(ctx, name, want, metav1.ApplyOptions{FieldManager: w.cfg.Owner, Force: true})
}
