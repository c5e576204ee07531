package layer2

import (
	"context"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

const (
	// firstList is how long a speaker that knows no list of voters waits before it makes the
	// first: if there are others, and the list was only deleted, these write theirs again.
	firstList = 3 * time.Second
	// firstOthers is how long the others leave it to the first of them.
	firstOthers = 2 * time.Second
	// silentFor is after how long without a word a node gives its seat to another.
	silentFor = time.Minute
	// writeLimit bounds a try to write the list, and writePause is the least between two.
	writeLimit, writePause = 5 * time.Second, time.Second
)

// vote keeps the list of voters: one of the voters writes the next one.
func (s *Speaker) vote(ctx context.Context) {
	if s.voting.Load() || time.Since(s.wrote) < writePause {
		return
	}
	next, ok := s.nextVoters()
	if !ok {
		return
	}
	s.wrote = time.Now()
	s.voting.Store(true)
	s.tasks.Go(func() error {
		defer s.voting.Store(false)
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()
		if err := s.cfg.Source.SetVoters(ctx, next); err != nil {
			s.cfg.Log.Debug("cannot write the list of voters; another speaker may have done so", "err", err)
		} else {
			s.cfg.Log.Info("wrote the list of voters", "epoch", next.Epoch, "voters", next.Names)
		}
		return nil
	})
}

// firstVoters returns the first list, if it is time for it.
func (s *Speaker) firstVoters() (first election.Voters, ok bool) {
	wait, roll := firstList, s.member.Roll(s.nodes, silentFor)
	for _, name := range s.nodes { // sorted
		if !roll.Speaking[name] {
			continue
		}
		if name != s.cfg.Node {
			wait += firstOthers
		}
		break
	}
	if time.Since(s.start) <= wait {
		return election.Voters{}, false
	}
	return election.First(roll)
}

// nextVoters returns the list that is to be written, if there is one.
func (s *Speaker) nextVoters() (election.Voters, bool) {
	stored, ours := s.cfg.Source.Voters(), s.member.Voters()
	switch {
	case stored.Epoch < ours.Epoch: // deleted, or set back
		return ours, true
	case ours.Epoch == 0:
		return s.firstVoters()
	case stored.Epoch > ours.Epoch || !slices.Contains(ours.Names, s.cfg.Node) || !s.member.Adopted():
		return election.Voters{}, false
	}
	roll := s.member.Roll(s.nodes, silentFor)
	for _, name := range ours.Names { // the first that is there does it
		if name == s.cfg.Node {
			break
		}
		if roll.Speaking[name] {
			return election.Voters{}, false
		}
	}
	return ours.Next(roll)
}
