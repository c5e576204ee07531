package layer2

import "time"

// isolatedFor is the time without a majority after which a node counts as cut off.
const isolatedFor = time.Second

// holdDown is how long a node that was cut off leaves its addresses to other nodes: its agent may not know yet what
// has changed in the cluster, and its routes may not be back. A variable for tests.
var holdDown = 10 * time.Second

// A holdBack decides whether a node that was cut off waits before it takes addresses back. The zero value is a node
// that has just started, which does not wait.
type holdBack struct {
	hadMajority bool      // this node has heard a majority at least once
	lostAt      time.Time // the majority was lost; zero: it is heard
	until       time.Time // the node waits until then
	waiting     bool      // the log says that this node waits
}

// note records at every heartbeat whether this node hears a majority.
func (h *holdBack) note(majority bool, now time.Time) {
	switch {
	case !majority && h.hadMajority && h.lostAt.IsZero():
		h.lostAt = now
	case majority:
		if h.isolated(now) {
			h.until = now.Add(holdDown)
		}
		h.hadMajority, h.lostAt = true, time.Time{}
	}
}

// waits reports whether the node was cut off a moment ago.
func (h *holdBack) waits(now time.Time) bool { return now.Before(h.until) }

// isolated reports whether the node has heard no majority for longer than any grant lasts.
func (h *holdBack) isolated(now time.Time) bool {
	return !h.lostAt.IsZero() && now.Sub(h.lostAt) >= isolatedFor
}

// exclude tells the election whether other nodes are better owners than this one: because this node is or was cut
// off, cannot announce on an interface, or because Config.Excluded says so.
func (s *Speaker) exclude() {
	now, reason := time.Now(), s.links.excluded
	if reason == "" && s.cfg.Excluded != nil {
		reason = s.cfg.Excluded()
	}
	waits := s.back.waits(now) || s.back.isolated(now)
	s.member.SetExcluded(waits || reason != "")
	if reason != s.excluded {
		if s.excluded = reason; reason != "" {
			s.cfg.Log.Warn("this node is not healthy: another node takes its addresses, if one is healthier", "reason", reason)
		} else {
			s.cfg.Log.Info("this node is healthy again")
		}
	}
	if waits == s.back.waiting {
		return
	}
	if s.back.waiting = waits; waits {
		s.cfg.Log.Info("this node is or was cut off: other nodes take its addresses until it is healthy", "atLeast", holdDown)
	} else {
		s.cfg.Log.Info("this node takes its addresses back")
	}
}
