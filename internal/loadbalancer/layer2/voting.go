package layer2

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

const (
	// firstListWait is how long a speaker without a list of voters waits before it writes the first one. If the list
	// was only deleted, a speaker that knows the list writes it again in this time.
	firstListWait = 3 * time.Second
	// otherWritersWait is how much longer the other nodes wait than the first node by name.
	otherWritersWait = 2 * time.Second
	// silentFor is the silence after which a voter gives its seat to another node.
	silentFor = time.Minute
	// writeTimeout bounds one write of the list, and writePause is the shortest time between two writes.
	writeTimeout, writePause = 5 * time.Second, time.Second
)

// A voting is this node's part in keeping the list of voters.
type voting struct {
	writing atomic.Bool
	write   sync.WaitGroup // the write in progress; probes must neither delay nor prevent it
	wroteAt time.Time
}

// writeVoters writes the next list of voters, if it is this node's turn.
func (s *Speaker) writeVoters(ctx context.Context) {
	if s.voting.writing.Load() || time.Since(s.voting.wroteAt) < writePause {
		return
	}
	next, ok := s.nextVoters()
	if !ok {
		return
	}
	s.voting.wroteAt = time.Now()
	s.voting.writing.Store(true)
	s.voting.write.Go(func() {
		defer s.voting.writing.Store(false)
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if err := s.cfg.Source.SetVoters(ctx, next); err != nil {
			s.cfg.Log.Debug("cannot write the list of voters; another speaker may have done so", "err", err)
		} else {
			s.cfg.Log.Info("wrote the list of voters", "epoch", next.Epoch, "voters", next.Names)
		}
	})
}

// nextVoters returns the list that this node must write; false: none.
func (s *Speaker) nextVoters() (election.Voters, bool) {
	stored, ours := s.cfg.Source.Voters(), s.member.Voters()
	switch {
	case stored.Epoch < ours.Epoch: // somebody deleted the list, or set an older one
		return ours, true
	case ours.Epoch == 0:
		return s.firstVoters()
	case stored.Epoch > ours.Epoch || !slices.Contains(ours.Names, s.cfg.Node) || !s.member.Adopted():
		return election.Voters{}, false
	}
	roll := s.member.Roll(s.nodes, silentFor)
	for _, name := range ours.Names { // the first voter that speaks writes the list
		if name == s.cfg.Node {
			break
		}
		if roll.Speaking[name] {
			return election.Voters{}, false
		}
	}
	return ours.Next(roll)
}

// firstVoters returns the first list, if this node has waited long enough.
func (s *Speaker) firstVoters() (first election.Voters, ok bool) {
	wait, roll := firstListWait, s.member.Roll(s.nodes, silentFor)
	for _, name := range s.nodes {
		if !roll.Speaking[name] {
			continue
		}
		if name != s.cfg.Node {
			wait += otherWritersWait
		}
		break
	}
	if time.Since(s.start) <= wait {
		return election.Voters{}, false
	}
	return election.First(roll)
}
