package layer2

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

const (
	// leaseEvery is how often the Lease's vote is asked for, or to have it longer.
	leaseEvery = time.Second
	// leaseLimit bounds a try.
	leaseLimit = 3 * time.Second
)

// A lease is the third vote of two nodes: that of a Lease in the API. It is asked for beside the
// loop, which waits for no API server.
type lease struct {
	pending   atomic.Bool
	asked     time.Time
	until     atomic.Int64 // by the election's clock
	granted   bool         // as the log said
	soleVoter soleVoter
}

// leaseVote lets the member count the Lease's vote as long as this node has it.
func (s *Speaker) leaseVote(ctx context.Context) {
	if !slices.Contains(s.member.Voters().Names, election.LeaseVoter) || !slices.Contains(s.member.Voters().Names, s.cfg.Node) {
		s.member.SetLease(0)
		return
	}
	until := time.Duration(s.lease.until.Load())
	s.member.SetLease(until)
	if granted := until > s.now(); granted != s.lease.granted {
		s.lease.granted = granted
		s.cfg.Log.Info("the third vote of two nodes, that of the Lease", "have", granted)
	}
	if s.lease.pending.Load() || time.Since(s.lease.asked) < leaseEvery || s.links.cutOff() {
		return // cut off: the other node can announce, and would never get the vote where the API server is on another network
	}
	if s.leavesVote(ctx) {
		return
	}
	s.lease.asked = time.Now()
	s.lease.pending.Store(true)
	if !s.tasks.TryGo(func() error {
		defer s.lease.pending.Store(false)
		ctx, cancel := context.WithTimeout(ctx, leaseLimit)
		defer cancel()
		until, err := s.cfg.Source.Vote(ctx)
		switch {
		case err != nil:
			s.cfg.Log.Debug("cannot get the vote of the Lease; the other node may have it", "err", err)
		case !until.IsZero():
			s.lease.until.Store(int64(until.Sub(s.start)))
		}
		return nil
	}) {
		s.lease.pending.Store(false)
	}
}

// returnVote gives the vote back: after the addresses, which it may be that carried.
func (s *Speaker) returnVote(ctx context.Context) {
	if time.Duration(s.lease.until.Load()) < s.now() {
		return
	}
	if err := s.cfg.Source.ReturnVote(ctx); err != nil {
		s.cfg.Log.Debug("cannot give the vote of the Lease back; it ends by itself", "err", err)
	}
}
