package layer2

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// firstGrant is how long after its start a speaker does not say that it has none: those that vote may have begun
// at the same time, and the first list of voters takes until then.
const firstGrant = firstList + firstOthers + time.Second

// Ready says why this node does not take its part in the election yet; nil: a majority of the voters grants what it asks for,
// and it grants to others. It may be called by any goroutine.
func (s *Speaker) Ready() error {
	switch now := s.now(); {
	case now < election.DefaultTiming.Grant+election.DefaultTiming.Guard:
		return errors.New("it does not vote yet: the process before it may have granted something")
	case int64(now) >= s.deadline.Load():
		return errors.New("no majority of the voters has granted anything yet [fairway status --load-balancers says who is silent]")
	}
	return nil
}

// reportGrant reports, when that changes, whether the node's grant lasts: without it the kernel mutes the node.
func (s *Speaker) reportGrant() {
	if s.cfg.Granted == nil {
		return
	}
	now := announce.Standing{Node: s.cfg.Node, Up: int64(s.now()) < s.deadline.Load(), Since: time.Now()}
	if !now.Up {
		if now.Reason = s.ungranted(); s.granted.Since.IsZero() && s.now() < firstGrant {
			return
		}
	}
	if now.Up == s.granted.Up && !s.granted.Since.IsZero() {
		now.Since = s.granted.Since
	}
	if now == s.granted {
		return
	}
	s.granted = now
	s.cfg.Granted(now)
}

// ungranted says why the node has no grant.
func (s *Speaker) ungranted() string {
	silent, all := s.member.Silent(), len(s.member.Voters().Names)
	switch {
	case s.broken:
		return "its rules cannot be loaded [the log of its speaker says why]"
	case all == 0:
		return "there is no list of voters yet"
	case len(silent) == 0:
		return "the voters have not granted it yet"
	}
	return fmt.Sprintf("no majority of the %d voters grants it: %s silent [do UDP packets of the speakers' port reach them?]", all, listed(silent))
}

// listed is some voters, with the verb.
func listed(names []string) string {
	verb := " are"
	if len(names) == 1 {
		verb = " is"
	}
	return strings.ReplaceAll(strings.Join(names, ", "), election.LeaseVoter, "the Lease's vote") + verb
}
