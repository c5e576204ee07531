package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// stuckAfter is the longest time that a leader may continue after its term, or without news of its Lease.
const stuckAfter = time.Minute

// A Standing is the state of a process in an Election, for health checks. The zero value has not started. Its methods
// may be called by any goroutine.
type Standing struct {
	mu      sync.Mutex
	elector *leaderelection.LeaderElector
	ended   time.Time // the end of the term, while lead has not returned
}

// stands stores the elector of a candidacy.
func (s *Standing) stands(e *leaderelection.LeaderElector) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elector = e
}

// leads notes that lead runs with this context, until the returned function is called.
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

// Ready returns an error until the process knows the holder of the Lease.
func (s *Standing) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.elector == nil || s.elector.GetLeader() == "" {
		return errors.New("the holder of the Lease is not known yet")
	}
	return nil
}

// Live returns an error if only a restart helps: lead does not end with its term, or runs without renewing the Lease. A
// missing API server is no error.
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
