package layer2

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

const (
	// leaseInterval is the time between two requests for the Lease's vote.
	leaseInterval = time.Second
	// leaseTimeout bounds one request.
	leaseTimeout = 3 * time.Second
)

// A Lease is the third vote of two nodes: an object in the API that one of them holds. Both methods may be called by
// any goroutine.
type Lease interface {
	// Vote asks for the Lease, or renews it. until is the end of this node's vote by the clock of this process. The
	// zero time says that another node holds the Lease.
	Vote(context.Context) (until time.Time, err error)
	// ReturnVote gives the Lease back.
	ReturnVote(context.Context) error
}

// A leaseVote is this node's hold on the Lease. A goroutine of its own asks for the Lease, because the loop must not
// wait for an API server.
type leaseVote struct {
	wanted atomic.Bool
	until  atomic.Int64 // the end of the vote, by the election's clock
	held   bool         // the log says so
}

// useLease lets the election count the Lease's vote while this node has it, and decides whether to ask for it. A node
// without any carrier does not ask: the other node can announce, and would never get the vote if the API server is on a
// separate network.
func (s *Speaker) useLease() {
	voters := s.member.Voters().Names
	if s.cfg.Lease == nil || !slices.Contains(voters, election.LeaseVoter) || !slices.Contains(voters, s.cfg.Node) {
		s.lease.wanted.Store(false)
		s.member.SetLease(0)
		return
	}
	s.lease.wanted.Store(!s.links.cutOff())
	until := time.Duration(s.lease.until.Load())
	s.member.SetLease(until)
	if held := until > s.now(); held != s.lease.held {
		s.lease.held = held
		s.cfg.Log.Info("the third vote of two nodes, that of the Lease", "have", held)
	}
}

// renewLease asks for the Lease while it is wanted, until ctx ends.
func (s *Speaker) renewLease(ctx context.Context) error {
	tick := time.NewTicker(leaseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !s.lease.wanted.Load() {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, leaseTimeout)
		until, err := s.cfg.Lease.Vote(ask)
		cancel()
		switch {
		case err != nil:
			s.cfg.Log.Debug("cannot get the vote of the Lease; the other node may have it", "err", err)
		case until.IsZero():
			s.lease.until.Store(0) // this node's clock may have stood still, and its vote has ended
		default:
			s.lease.until.Store(int64(until.Sub(s.start)))
		}
	}
}

// returnLease gives the Lease back. The caller has given up the addresses, which may depend on the Lease's vote.
func (s *Speaker) returnLease(ctx context.Context) {
	if time.Duration(s.lease.until.Load()) < s.now() {
		return
	}
	if err := s.cfg.Lease.ReturnVote(ctx); err != nil {
		s.cfg.Log.Debug("cannot give the vote of the Lease back; it ends by itself", "err", err)
	}
}
