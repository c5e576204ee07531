package bfd

import (
	"cmp"
	"net/netip"
	"time"
)

// A Config is a router with the settings of its session. It is comparable.
type Config struct {
	Peer   netip.Addr
	Source netip.Addr // zero: the kernel chooses
	// Receive is the shortest interval of packets that this node accepts, and Transmit the shortest interval at which it
	// wants to send. The slower end determines the interval in each direction.
	Receive, Transmit time.Duration
	Multiplier        uint8 // so many lost packets make the router call this node silent: 2 to 255
	Passive           bool  // the router sends first
	// MultiHop says that the router is not on a network of the node. Its packets must arrive with MinTTL or more; 0: 254.
	MultiHop bool
	MinTTL   uint8
}

// Fixed returns the part of a Config that cannot change while a session goes on.
func (c Config) Fixed() Config { return Config{Peer: c.Peer, Source: c.Source, MultiHop: c.MultiHop} }

// slowInterval is the shortest interval of packets while a session is not up (RFC 5880, 6.8.3).
const slowInterval = time.Second

// A Change is an event of a session: it came up, it went down, or it can or cannot be watched.
type Change struct {
	Config Config
	// Problem says that Status.Problem has changed.
	Problem bool
	Up      bool
	// Admin says that the router ended the session on purpose. The way to the router may still work.
	Admin  bool
	Reason string
}

// A session is the state machine of RFC 5880, 6.8, with its names. It is pure: packets and times in, packets and Changes
// out.
type session struct {
	cfg    Config
	jitter func() float64 // from 0 to 1

	state, remoteState State
	diag               diagnostic
	local, remote      uint32        // discriminators; remote 0: unknown
	remoteReceive      time.Duration // the router's Required Min RX
	remoteDemand       bool
	transmit           time.Duration // Desired Min TX; slowInterval at first
	poll               bool          // a Poll Sequence runs: the router must confirm a new interval
	before             intervals     // the intervals until the Poll Sequence ends; zero: none
	lastReceived       time.Time     // of the last packet
	detection          time.Duration // the longest silence of a router that is up
	next               time.Time     // of the next packet to send
	changes            []Change
	events             [2]uint64 // numbers of going down, and of coming up
}

// intervals count until the router has confirmed new ones.
type intervals struct{ transmit, receive time.Duration }

// newSession returns a session that is down. local is its discriminator.
func newSession(c Config, local uint32, now time.Time, jitter func() float64) *session {
	return &session{
		cfg: c, local: local, jitter: jitter, state: Down, remoteState: Down, remoteReceive: time.Microsecond,
		transmit: max(slowInterval, c.Transmit), next: now,
	}
}

// receive takes a packet for this session, and returns the answer to send at once.
func (s *session) receive(now time.Time, p packet) []packet {
	s.remote, s.remoteState, s.remoteDemand = p.my, p.state, p.demand
	if p.receive < s.remoteReceive && p.receive > 0 {
		s.next = earlier(s.next, now.Add(max(s.pace(), p.receive))) // do not wait for the end of the longer interval
	}
	s.remoteReceive = p.receive
	if p.final {
		s.poll, s.before = false, intervals{}
	}
	s.lastReceived, s.detection = now, time.Duration(p.multiplier)*max(s.cfg.Receive, s.before.receive, p.transmit)
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

// reconfigure changes the settings while the session goes on. The router hears of new intervals by a Poll Sequence. Until
// its end this node sends no slower than before, and expects packets no faster than before (RFC 5880, 6.8.3).
func (s *session) reconfigure(now time.Time, c Config) {
	former := intervals{min(s.pace(), c.Transmit), max(s.cfg.Receive, s.before.receive)}
	s.cfg, s.next = c, now
	if s.state != Up {
		s.transmit = max(slowInterval, c.Transmit)
		return
	}
	s.transmit, s.before, s.poll = c.Transmit, former, true
}

// pace returns this node's interval.
func (s *session) pace() time.Duration { return cmp.Or(s.before.transmit, s.transmit) }

// become changes the state, and makes the next packet due at once.
func (s *session) become(now time.Time, state State, diag diagnostic, admin bool, reason string) {
	last := s.state
	if s.diag = diag; last == state {
		return
	}
	s.state, s.next = state, now
	switch {
	case state == Up:
		s.events[1]++
		s.poll = s.transmit != s.cfg.Transmit
		s.transmit = s.cfg.Transmit
		s.changes = append(s.changes, Change{Config: s.cfg, Up: true})
	case last == Up:
		s.events[0]++
		s.poll, s.transmit, s.before = false, max(slowInterval, s.cfg.Transmit), intervals{}
		s.changes = append(s.changes, Change{Config: s.cfg, Admin: admin, Reason: reason})
	}
}

// wake runs at the time of due. It sets a router down that was silent for too long, and returns the next packet if its
// time has come.
func (s *session) wake(now time.Time) []packet {
	if s.remote != 0 && !now.Before(s.lastReceived.Add(s.detection)) {
		silent := now.Sub(s.lastReceived).Round(time.Millisecond)
		if s.remote = 0; s.state > Down {
			s.become(now, Down, diagExpired, false, "the router was silent for "+silent.String())
		}
		s.remoteReceive = time.Microsecond // forget the router's interval
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

// speaks reports whether this node sends periodic packets (RFC 5880, 6.8.7).
func (s *session) speaks() bool {
	switch {
	case s.cfg.Passive && s.remote == 0, s.remoteReceive == 0:
		return false
	}
	return !s.remoteDemand || s.state != Up || s.remoteState != Up || s.poll
}

// due returns the time of the next wake.
func (s *session) due() time.Time {
	if s.remote == 0 {
		return s.next
	}
	return earlier(s.next, s.lastReceived.Add(s.detection))
}

// end returns the last packet, which says that the session is not wanted any more.
func (s *session) end() packet {
	s.state, s.diag, s.poll = AdminDown, diagAdmin, false
	return s.packet(false)
}

// packet returns a packet with the session's state.
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
