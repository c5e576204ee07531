package layer2

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// firstGrant is how long a speaker may have no grant after its start without saying so. All voters may have started at
// the same time, and the first list of voters takes that long.
const firstGrant = firstListWait + otherWritersWait + time.Second

// A grantState is this node's last grant.
type grantState struct {
	deadline atomic.Int64      // the end of the grant, by the election's clock
	reported announce.Standing // the last call of Config.Granted
}

// allowed reports whether the last grant still lasts. It may be called by any goroutine.
func (s *Speaker) allowed(netip.Addr) bool { return int64(s.now()) < s.grant.deadline.Load() }

// Ready returns why this node does not take part in the election yet. It returns nil if a majority of the voters grants
// this node its addresses, and this node may grant. It may be called by any goroutine.
func (s *Speaker) Ready() error {
	switch now := s.now(); {
	case now < election.DefaultTiming.Grant+election.DefaultTiming.Guard:
		return errors.New("it does not vote yet, because the process before it may have granted addresses")
	case int64(now) >= s.grant.deadline.Load():
		return errors.New("no majority of the voters has granted anything yet [fairway status --load-balancers names the silent ones]")
	}
	return nil
}

// reportGrant reports the begin and the end of this node's grant. Without a grant the kernel mutes the node.
func (s *Speaker) reportGrant() {
	if s.cfg.Granted == nil {
		return
	}
	last := s.grant.reported
	now := announce.Standing{Node: s.cfg.Node, Up: s.allowed(netip.Addr{}), Since: time.Now()}
	if now.Up {
		now.Reason = s.lacking()
	} else if now.Reason = s.noGrantReason(); last.Since.IsZero() && s.now() < firstGrant {
		return
	}
	if now.Up == last.Up && !last.Since.IsZero() {
		now.Since = last.Since
	}
	if now == last {
		return
	}
	s.grant.reported = now
	s.cfg.Granted(now)
}

// lacking returns why the node does not announce all addresses that it would have by decision; empty: it does.
func (s *Speaker) lacking() string {
	const leaves = "it leaves its addresses to other nodes, if one is healthier: "
	switch {
	case s.excluded != "":
		return leaves + s.excluded
	case s.back.waiting:
		return fmt.Sprintf("%sit was cut off, and waits for %v", leaves, holdDown)
	case s.tooMany:
		return fmt.Sprintf("it owns more addresses than the %d that it can announce [let fewer Services have an address, or more nodes announce them]", election.MaxAddrs)
	}
	return ""
}

// noGrantReason returns why the node has no grant.
func (s *Speaker) noGrantReason() string {
	silent, all := s.member.Silent(), len(s.member.Voters().Names)
	switch {
	case s.fenceBroken:
		return "its rules cannot be loaded [the log of its speaker says why]"
	case all == 0:
		return "there is no list of voters yet"
	case len(silent) == 0:
		return "the voters have not granted it yet"
	}
	return fmt.Sprintf("no majority of the %d voters grants it: %s silent [do UDP packets of the speakers' port reach them?]", all, withVerb(silent))
}

// withVerb returns the names of voters with "is" or "are".
func withVerb(names []string) string {
	verb := " are"
	if len(names) == 1 {
		verb = " is"
	}
	return strings.ReplaceAll(strings.Join(names, ", "), election.LeaseVoter, "the Lease's vote") + verb
}
