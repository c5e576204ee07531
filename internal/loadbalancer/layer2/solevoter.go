package layer2

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

const (
	// unansweredFor is how long no router answers a node that does not hear the other one, until it leaves the Lease's vote.
	unansweredFor = 3 * time.Second
	// yieldFor is how long it does not ask for the vote: the vote ends meanwhile, and the other node asks every second.
	yieldFor = 8 * time.Second
	// yieldAgain is how long it keeps a vote that nobody else wanted, the first time, and yieldMost at most: the router itself may be dead.
	yieldAgain, yieldMost = time.Minute, 32 * time.Minute
)

// A soleVoter decides whether one of two nodes that does not hear the other asks for the Lease's vote: it may be this one whose
// packets no node receives, or that receives none, while it reaches the API server by another network. Then no router answers it.
type soleVoter struct {
	since   time.Time // the other node is silent
	yielded time.Time // the vote was left to the other one
	pause   time.Duration
	asked   time.Time    // a router, last
	answer  atomic.Int64 // when one answered, by the election's clock
}

// yields reports whether the vote is left to the other node. answered is when a router answered last.
func (a *soleVoter) yields(now time.Time, silent bool, answered time.Time) bool {
	if !silent {
		a.since, a.yielded, a.pause = time.Time{}, time.Time{}, 0
		return false
	}
	if a.since.IsZero() {
		a.since = now
	}
	if answered.Before(a.since) {
		answered = a.since
	}
	switch {
	case now.Sub(answered) < unansweredFor:
		return false
	case now.Sub(a.yielded) < yieldFor:
		return true
	case now.Sub(a.yielded) < a.pause:
		return false // nobody else wanted it
	}
	a.yielded, a.pause = now, max(yieldAgain, min(2*a.pause, yieldMost))
	return true
}

// leavesVote reports whether this node leaves the Lease's vote to the other one. A node without a router keeps it.
func (s *Speaker) leavesVote(ctx context.Context) bool {
	a, now := &s.lease.soleVoter, time.Now()
	silent := slices.ContainsFunc(s.member.Silent(), func(name string) bool { return name != election.LeaseVoter && name != s.cfg.Node })
	devices, routers := s.routes.routers(s.links.on(nil))
	if len(routers) == 0 {
		silent = false
	}
	if silent && now.Sub(a.asked) >= time.Second {
		a.asked = now
		s.askRouters(ctx, devices, routers)
	}
	was := a.yielded
	leaves := a.yields(now, silent, s.start.Add(time.Duration(a.answer.Load())))
	if leaves && a.yielded != was {
		s.cfg.Log.Warn("the other node is silent, and no router answers this one: the third vote is left to the other node", "routers", routers, "for", yieldFor)
	}
	return leaves
}

// askRouters asks by ARP and neighbour discovery whether a router is there, beside the loop.
func (s *Speaker) askRouters(ctx context.Context, devices []string, routers []netip.Addr) {
	for _, a := range routers {
		s.tasks.TryGo(func() error { // else with the next try
			ctx, cancel := context.WithTimeout(ctx, 2*probeTime)
			defer cancel()
			if s.arp.Answers(ctx, a, devices, probeTime) {
				s.lease.soleVoter.answer.Store(int64(s.now()))
			}
			return nil
		})
	}
}
