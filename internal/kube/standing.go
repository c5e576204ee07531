package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// stuckAfter is how long a leader may go on after its term, or without news of its Lease.
const stuckAfter = time.Minute

// A Standing is how a process stands in an Election, for who asks whether it works. The zero value has not
// begun. Its methods may be called by any goroutine.
type Standing struct {
	mu      sync.Mutex
	elector *leaderelection.LeaderElector
	ended   time.Time // the term of a leader that has not returned yet
}

// stands begins a candidacy.
func (s *Standing) stands(e *leaderelection.LeaderElector) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elector = e
}

// leads notes that lead runs with this context, until the function that it returns is called.
func (s *Standing) leads(ctx context.Context) (returned func()) {
	if s == nil {
		return func() {}
	}
	note := func(t time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = t
	}
	stop := context.AfterFunc(ctx, func() { note(time.Now()) })
	return func() { stop(); note(time.Time{}) }
}

// Leader reports whether this process has the Lease.
func (s *Standing) Leader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elector != nil && s.elector.IsLeader()
}

// Ready says why the process neither leads nor waits to: it has not read who has the Lease.
func (s *Standing) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.elector == nil || s.elector.GetLeader() == "" {
		return errors.New("who has the Lease is not known yet")
	}
	return nil
}

// Live says why only a restart helps: the leader does not end with its term, or does not renew its Lease
// and goes on. An API server that is away is no reason.
func (s *Standing) Live() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended.IsZero() && time.Since(s.ended) > stuckAfter {
		return fmt.Errorf("the leader's term ended %v ago, and it has not returned", time.Since(s.ended).Round(time.Second))
	}
	if s.elector == nil {
		return nil
	}
	return s.elector.Check(stuckAfter)
}
