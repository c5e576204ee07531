package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// optionalWait is the time that a subscription waits for optional lists, after all required lists are complete. A slow API
// server delays the required lists too, so it gets more time.
const optionalWait = 5 * time.Second

// A Subscription is one consumer's view of some feeds: a gate, a wake-up channel, and the names that have changed since
// the last Take. Each consumer takes its own names. Its methods may be called by any goroutine.
//
// The gate opens when the first lists of all required feeds are complete, and the lists of the optional feeds are
// complete, refused, or late.
type Subscription struct {
	log      *slog.Logger
	consumer string    // for the log
	started  time.Time // earlier changes are not timed

	wake   chan struct{}
	synced chan struct{}

	mu                 sync.Mutex
	required, optional []Input
	late               *time.Timer // nil: a required list is missing
	tooLate            bool
	opening, ready     bool                   // the gate is opening, is open
	dirty              map[api.Name]int64     // changed names, with the oldest trigger
	triggers           map[api.Name]time.Time // of the last Take
}

// An Input is a feed's side of a gate.
type Input struct {
	kind, without string
	progress      func() int32 // notListed, refused, listed
	len           func() int
}

// OrRefused returns an Input that also counts as listed when the API server refuses the kind.
func (in Input) OrRefused() Input {
	progress := in.progress
	in.progress = func() int32 {
		if p := progress(); p != refused {
			return p
		}
		return listed
	}
	return in
}

// OnlyIf returns an Input that counts as listed while needed returns false.
func (in Input) OnlyIf(needed func() bool) Input {
	progress := in.progress
	in.progress = func() int32 {
		if !needed() {
			return listed
		}
		return progress()
	}
	return in
}

// Listed reports whether the first list is complete.
func (in Input) Listed() bool { return in.progress() == listed }

// Subscribe returns a subscription for a consumer, by the name that the log uses. It follows no feed yet.
func (s *Store) Subscribe(consumer string) *Subscription {
	sub := &Subscription{
		log: s.cfg.Log, consumer: consumer, started: s.started,
		wake: make(chan struct{}, 1), synced: make(chan struct{}),
		dirty: map[api.Name]int64{},
	}
	s.mu.Lock()
	s.subscriptions = append(s.subscriptions, sub)
	s.mu.Unlock()
	return sub
}

// Synced is closed when the gate opens.
func (s *Subscription) Synced() <-chan struct{} { return s.synced }

// Dirty receives after a change since the last wake-up. One wake-up may stand for many changes. The first wake-up comes
// with Synced.
func (s *Subscription) Dirty() <-chan struct{} { return s.wake }

// Decide calls pass with the names from Take, after each change, until ctx ends, which is no error. Meanwhile the
// writer runs, which publishes the decisions of pass.
func (s *Subscription) Decide(ctx context.Context, writer interface{ Run(context.Context) error }, pass func(names []api.Name)) error {
	var writes sync.WaitGroup
	writes.Go(func() { _ = writer.Run(ctx) })
	defer writes.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Dirty():
		}
		pass(s.Take())
	}
}

// Take returns the names that have changed since the last Take, sorted and including deleted objects. It returns no
// names before Synced.
func (s *Subscription) Take() []api.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take()
}

func (s *Subscription) take() []api.Name {
	if !s.ready {
		return nil
	}
	names := make([]api.Name, 0, len(s.dirty))
	s.triggers = map[api.Name]time.Time{}
	for name, trigger := range s.dirty {
		names = append(names, name)
		if trigger != 0 {
			s.triggers[name] = time.Unix(0, trigger)
		}
	}
	s.dirty = map[api.Name]int64{}
	slices.SortFunc(names, api.Name.Compare)
	return names
}

// Triggers returns, for the names of the last Take, the time of the oldest change: kube-proxy's
// network_programming_duration starts there. It leaves out names whose changes have no time, and changes from before
// this program started.
func (s *Subscription) Triggers() map[api.Name]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.triggers
}

// Mark notes that a name has changed and wakes the consumer. The lock of a feed may be held.
func (s *Subscription) Mark(name api.Name, trigger int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markLocked(name, trigger)
}

func (s *Subscription) markLocked(name api.Name, trigger int64) {
	if trigger <= s.started.UnixNano() {
		trigger = 0
	}
	if was := s.dirty[name]; trigger == 0 || was != 0 && was < trigger {
		trigger = was
	}
	s.dirty[name] = trigger
	s.notifyLocked()
}

// Notify wakes the consumer after a change without a name.
func (s *Subscription) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyLocked()
}

// notifyLocked leaves one wake-up for a consumer that may be busy.
func (s *Subscription) notifyLocked() {
	if !s.ready {
		return // Check will wake the consumer
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Need makes the gate wait for all required inputs, and for a limited time for the optional inputs.
func (s *Subscription) Need(required, optional []Input) {
	s.mu.Lock()
	s.required, s.optional = required, optional
	s.mu.Unlock()
	s.Check()
}

// Check opens the gate if the lists are complete. No lock of a feed may be held.
func (s *Subscription) Check() {
	s.mu.Lock()
	opens := !s.opening && s.complete()
	s.opening = s.opening || opens
	s.mu.Unlock()
	if !opens {
		return
	}
	s.logStart() // reads the feeds
	s.mu.Lock()
	s.ready = true
	close(s.synced)
	s.notifyLocked()
	s.mu.Unlock()
}

// complete reports whether the gate can open. s.mu is held.
func (s *Subscription) complete() bool {
	missing := func(in Input) bool { return in.progress() != listed }
	if len(s.required) == 0 || slices.ContainsFunc(s.required, missing) {
		return false
	}
	late := func(in Input) bool { return in.progress() == notListed }
	if s.tooLate || !slices.ContainsFunc(s.optional, late) {
		return true
	}
	if s.late == nil {
		s.late = time.AfterFunc(optionalWait, s.stopWaiting)
	}
	return false
}

// stopWaiting opens the gate without the late lists.
func (s *Subscription) stopWaiting() {
	s.mu.Lock()
	s.tooLate = true
	s.mu.Unlock()
	s.Check()
}

// logStart logs the lists with which the consumer starts, and the missing lists.
func (s *Subscription) logStart() {
	attrs := []any{"consumer", s.consumer}
	for _, in := range slices.Concat(s.required, s.optional) {
		why := "the API server refuses it"
		switch in.progress() {
		case listed:
			attrs = append(attrs, in.kind, in.len())
			continue
		case notListed:
			why = "the API server has not sent it yet"
		}
		s.log.Warn("starting without an optional list; it is used when it arrives",
			"consumer", s.consumer, "kind", in.kind, "reason", why, "meanwhile", in.without)
	}
	s.log.Info("initial lists received", attrs...)
}

// stop ends the wait for late lists, at the end of the store.
func (s *Subscription) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late != nil {
		s.late.Stop()
	}
}
