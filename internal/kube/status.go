package kube

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/fairway-net/fairway/internal/oneline"
	"github.com/fairway-net/fairway/internal/service"
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

// StatusConfig says what a StatusWriter writes. All fields are required.
type StatusConfig[V any] struct {
	Log *slog.Logger
	// Owner is the field manager: the API server keeps one owner for each field, and what
	// an owner no longer sends is removed. Each StatusWriter of a kind has its own.
	Owner string
	Kind  string // of the objects, for the log: "services"
	// Have returns the owner's part of a status, as it was last read; false: there is no
	// such object.
	Have func(service.Name) (V, bool)
	// Apply writes the owner's part of a status by server-side apply.
	Apply func(ctx context.Context, name service.Name, want V, how metav1.ApplyOptions) error
}

// A StatusWriter keeps one owner's fields in the statuses of objects as they are wanted. It
// is level-triggered: it writes until Have says that the status is there, again if another
// program changes it, and nothing if it is there already. Its methods may be called by any
// goroutine, and do not wait for the API server.
type StatusWriter[V any] struct {
	cfg   StatusConfig[V]
	queue workqueue.TypedRateLimitingInterface[service.Name]

	mu    sync.Mutex
	wants map[service.Name]*wantedStatus[V]
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
		cfg: cfg, wants: map[service.Name]*wantedStatus[V]{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[service.Name](statusAgain, statusLast)),
	}
}

// Set makes want the owner's part of an object's status, from now on.
func (w *StatusWriter[V]) Set(name service.Name, want V) {
	w.mu.Lock()
	if s := w.wants[name]; s != nil {
		s.value = want
	} else {
		w.wants[name] = &wantedStatus[V]{value: want}
	}
	w.mu.Unlock()
	w.queue.Add(name)
}

// Forget stops caring for an object; its status stays as it is. To remove the owner's
// fields, Set them to nothing.
func (w *StatusWriter[V]) Forget(name service.Name) {
	w.mu.Lock()
	delete(w.wants, name)
	w.mu.Unlock()
}

// Changed lets the writer look again: Have may return something else for an object.
func (w *StatusWriter[V]) Changed(name service.Name) { w.queue.Add(name) }

// Run writes until ctx ends, which is no error.
func (w *StatusWriter[V]) Run(ctx context.Context) error {
	defer w.queue.ShutDown()
	defer context.AfterFunc(ctx, w.queue.ShutDown)()
	for {
		name, ended := w.queue.Get()
		if ended {
			return nil
		}
		wrote := w.bring(ctx, name)
		w.queue.Done(name)
		if wrote {
			select {
			case <-ctx.Done():
			case <-time.After(statusPause):
			}
		}
	}
}

// bring writes the status of one object if it is not as it is wanted, and reports whether
// it asked the API server.
func (w *StatusWriter[V]) bring(ctx context.Context, name service.Name) bool {
	w.mu.Lock()
	s := w.wants[name]
	if s == nil {
		w.mu.Unlock()
		w.queue.Forget(name)
		return false
	}
	want, rest := s.value, statusAgain-time.Since(s.written)
	w.mu.Unlock()
	have, exists := w.cfg.Have(name)
	if !exists || reflect.DeepEqual(have, want) {
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
			w.cfg.Log.Warn("cannot write a status, will try again", "kind", w.cfg.Kind, "name", name.String(), "owner", w.cfg.Owner, "err", oneline.Error(err))
		}
		w.queue.AddRateLimited(name)
	}
	return true
}

func (w *StatusWriter[V]) apply(ctx context.Context, name service.Name, want V) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	// Force: where another program wrote our field, it is ours again. It loses no other.
	return w.cfg.Apply(ctx, name, want, metav1.ApplyOptions{FieldManager: w.cfg.Owner, Force: true})
}
