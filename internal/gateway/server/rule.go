package server

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A ruleState is what the server keeps for a rule, between two requests.
type ruleState struct {
	rule     *gateway.Rule
	backends []*backendState
	total    uint64 // sum of the weights
	mirrors  []*backendState
	limits   *limiter
	used     atomic.Int64 // seconds since 1970
	meters   atomic.Pointer[[]*meter]
}

// A backendState is a backend of a rule with its endpoints.
type backendState struct {
	*gateway.Backend
	upstream *upstream
	below    uint64 // the sum of the weights up to this backend
}

// ruleOf returns the state of a rule. The first request of a rule makes it.
func (s *Server) ruleOf(rule *gateway.Rule, now time.Time) *ruleState {
	v, ok := s.rules.Load(rule)
	if !ok {
		v, _ = s.rules.LoadOrStore(rule, s.newRule(rule))
	}
	r := v.(*ruleState)
	if sec := now.Unix(); r.used.Load() != sec {
		r.used.Store(sec)
	}
	return r
}

func (s *Server) newRule(rule *gateway.Rule) *ruleState {
	r := &ruleState{rule: rule}
	for i := range rule.Backends {
		b := &rule.Backends[i]
		if b.Weight == 0 {
			continue
		}
		r.total += uint64(b.Weight)
		r.backends = append(r.backends, s.newBackend(b, r.total))
	}
	for i := range rule.Filters.Mirrors {
		r.mirrors = append(r.mirrors, s.newBackend(&rule.Filters.Mirrors[i].Backend, 0))
	}
	if rule.Filters.Limits != nil {
		r.limits = newLimiter(rule.Filters.Limits)
	}
	r.meters.Store(&[]*meter{})
	return r
}

func (s *Server) newBackend(b *gateway.Backend, below uint64) *backendState {
	return &backendState{b, s.upstreamOf(b), below}
}

// choose returns a backend at random, as the weights say; nil if no backend has a weight.
func (r *ruleState) choose() *backendState {
	switch len(r.backends) {
	case 0:
		return nil
	case 1:
		return r.backends[0]
	}
	n := weighted(r.total)
	i, _ := slices.BinarySearchFunc(r.backends, n, func(b *backendState, n uint64) int {
		if b.below <= n {
			return -1
		}
		return 1
	})
	return r.backends[i]
}
