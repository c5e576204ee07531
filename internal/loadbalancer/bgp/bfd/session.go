package bfd

import (
	"cmp"
	"net/netip"
	"time"
)

// A Config is a router and how it is watched. It is comparable.
type Config struct {
	Peer   netip.Addr
	Source netip.Addr // zero: the kernel chooses
	// Receive is the least time between packets that we can take, and Transmit between those
	// that we want to send: what is slower counts, ours or the router's.
	Receive, Transmit time.Duration
	Multiplier        uint8 // so many packets of ours may be lost: 2 to 255
	Passive           bool  // the router begins
	// MultiHop: the router is not on a network of the node's. MinTTL is what packets must have
	// left of 255 then; 0: 254.
	MultiHop bool
	MinTTL   uint8
}

// Way is what of a Config cannot change while a session goes on.
func (c Config) Way() Config { return Config{Peer: c.Peer, Source: c.Source, MultiHop: c.MultiHop} }

// slow is the least time between packets while the session is not up (RFC 5880, 6.8.3).
const slow = time.Second

// A Change is a session's that came up, or was up.
type Change struct {
	Config Config
	// Problem: whether the router can be watched at all has changed (Watch.Status).
	Problem bool
	Up      bool
	// Admin: the router ended the session on purpose, which says nothing about the way to it.
	Admin  bool
	Reason string
}

// A session is the state machine of RFC 5880, 6.8, by the names there. It is pure: packets and
// times in, packets and Changes out.
type session struct {
	cfg    Config
	jitter func() float64 // from 0 to 1

	state, remoteState State
	diag               diagnostic
	local, remote      uint32        // discriminators; remote 0: not known
	remoteReceive      time.Duration // the router's Required Min RX
	remoteDemand       bool
	transmit           time.Duration // Desired Min TX, which is slow at first
	poll               bool          // a Poll Sequence is on: the router must hear of a new interval
	was                intervals     // until the Poll Sequence of a change ends; zero: there is none
	lastReceived       time.Time     // the last packet; zero: none
	detection          time.Duration // so long the router may be silent
	next               time.Time     // when the next packet is due
	changes            []Change
	events             [2]uint64 // down, up
}

// intervals are those that count until the router has heard of others.
type intervals struct{ transmit, receive time.Duration }

func newSession(c Config, local uint32, now time.Time, jitter func() float64) *session {
	return &session{
		cfg: c, local: local, jitter: jitter, state: Down, remoteState: Down, remoteReceive: time.Microsecond,
		transmit: max(slow, c.Transmit), next: now,
	}
}

// receive takes a packet that is for this session, and returns an answer that is due at once.
func (s *session) receive(now time.Time, p packet) []packet {
	s.remote, s.remoteState, s.remoteDemand = p.my, p.state, p.demand
	if p.receive < s.remoteReceive && p.receive > 0 {
		s.next = earlier(s.next, now.Add(max(s.pace(), p.receive))) // not after the interval that was
	}
	s.remoteReceive = p.receive
	if p.final {
		s.poll, s.was = false, intervals{}
	}
	s.lastReceived, s.detection = now, time.Duration(p.multiplier)*max(s.cfg.Receive, s.was.receive, p.transmit)
	if s.state == AdminDown {
		return nil
	}
	switch {
	case p.state == AdminDown:
		s.become(now, Down, diagNeighbor, true, "the router has ended BFD")
	case s.state == Down && p.state == Down:
		s.become(now, Init, s.diag, false, "")
	case s.state == Down && p.state == Init, s.state == Init && p.state >= Init:
		s.become(now, Up, diagNone, false, "")
	case s.state == Up && p.state == Down:
		s.become(now, Down, diagNeighbor, false, "the router says that it does not hear this node")
	}
	if p.poll {
		return []packet{s.packet(true)}
	}
	return nil
}

// reconfigure changes how the router is watched while the session goes on. The router hears of it by a Poll Sequence, until whose end we
// send no slower than before, and expect it to send no faster (RFC 5880, 6.8.3).
func (s *session) reconfigure(now time.Time, c Config) {
	before := intervals{min(s.pace(), c.Transmit), max(s.cfg.Receive, s.was.receive)}
	s.cfg, s.next = c, now
	if s.state != Up {
		s.transmit = max(slow, c.Transmit)
		return
	}
	s.transmit, s.was, s.poll = c.Transmit, before, true
}

// pace is the least time between packets of ours.
func (s *session) pace() time.Duration { return cmp.Or(s.was.transmit, s.transmit) }

// become changes the state and lets the router hear of it at once.
func (s *session) become(now time.Time, state State, diag diagnostic, admin bool, reason string) {
	was := s.state
	if s.diag = diag; was == state {
		return
	}
	s.state, s.next = state, now
	switch {
	case state == Up:
		s.events[1]++
		s.poll = s.transmit != s.cfg.Transmit
		s.transmit = s.cfg.Transmit
		s.changes = append(s.changes, Change{Config: s.cfg, Up: true})
	case was == Up:
		s.events[0]++
		s.poll, s.transmit, s.was = false, max(slow, s.cfg.Transmit), intervals{}
		s.changes = append(s.changes, Change{Config: s.cfg, Admin: admin, Reason: reason})
	}
}

// wake does what is due: a router that was silent for too long is down, and the next packet goes
// out.
func (s *session) wake(now time.Time) []packet {
	if s.remote != 0 && !now.Before(s.lastReceived.Add(s.detection)) {
		silent := now.Sub(s.lastReceived).Round(time.Millisecond)
		if s.remote = 0; s.state > Down {
			s.become(now, Down, diagExpired, false, "the router was silent for "+silent.String())
		}
		s.remoteReceive = time.Microsecond // what it said counts no more
	}
	if now.Before(s.next) {
		return nil
	}
	interval := max(s.pace(), s.remoteReceive)
	s.next = now.Add(interval - time.Duration(s.jitter()*float64(interval)/4))
	if !s.speaks() {
		return nil
	}
	return []packet{s.packet(false)}
}

// speaks reports whether packets are sent from time to time (RFC 5880, 6.8.7).
func (s *session) speaks() bool {
	switch {
	case s.cfg.Passive && s.remote == 0, s.remoteReceive == 0:
		return false
	}
	return !s.remoteDemand || s.state != Up || s.remoteState != Up || s.poll
}

// due returns when wake has something to do.
func (s *session) due() time.Time {
	if s.remote == 0 {
		return s.next
	}
	return earlier(s.next, s.lastReceived.Add(s.detection))
}

// end says that the session is not wanted any more.
func (s *session) end() packet {
	s.state, s.diag, s.poll = AdminDown, diagAdmin, false
	return s.packet(false)
}

func (s *session) packet(final bool) packet {
	return packet{
		state: s.state, diag: s.diag, poll: s.poll && !final, final: final, multiplier: s.cfg.Multiplier, my: s.local, your: s.remote,
		transmit: s.transmit, receive: s.cfg.Receive,
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
