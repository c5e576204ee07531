package election

import (
	"net/netip"
	"slices"
	"time"
)

// A voter is the half of a Member that promises addresses to nodes.
type voter struct {
	// holder is to whom an address was granted last. The promise lasts as long as that
	// node's deadline is not over and it still claims the address.
	holder    map[netip.Addr]*claimant
	claimants map[nodeID]*claimant
}

// A claimant is a node as a voter knows it.
type claimant struct {
	id       nodeID
	lastSeen time.Duration // its last heartbeat
	spoke    bool          // there was one
	excluded bool
	leaving  bool
	epoch    uint64        // of the list of voters that it has
	seq      uint64        // of the heartbeat that the promise is about
	deadline time.Duration // of the promise for all that it holds
	promised bool          // there is a deadline
	version  uint64        // of list; 0: none
	list     []netip.Addr  // sorted
	refused  []uint16      // positions in list
	// contested are addresses of list that another node asked for, and when.
	contested map[netip.Addr]time.Duration
	// The list that is coming in parts.
	coming uint64
	parts  [][]netip.Addr
}

// silence is after how long the promise to a node that says nothing is over.
func (m *Member) silence() time.Duration { return m.cfg.Timing.Grant + m.cfg.Timing.Guard }

// suspicion is after how long a node that says nothing is left out of every choice: sooner than
// its promise ends, so that whoever takes over asks in time and is told when it does.
func (m *Member) suspicion() time.Duration { return m.cfg.Timing.Grant * 7 / 10 }

// mayVote reports whether we may promise anything: before, there may be promises of a process
// before this one, which we do not know.
func (m *Member) mayVote() bool { return m.vote && m.now-m.cfg.Start >= m.silence() }

func (m *Member) claimant(p *peer) *claimant {
	c := m.voter.claimants[p.id]
	if c == nil {
		c = &claimant{id: p.id, contested: map[netip.Addr]time.Duration{}}
		m.voter.claimants[p.id] = c
	}
	return c
}

// collect takes a part of a list.
func (m *Member) collect(p *peer, part claims) {
	c := m.claimant(p)
	if c.coming != part.version || len(c.parts) != int(part.parts) {
		c.coming, c.parts = part.version, make([][]netip.Addr, part.parts)
	}
	if part.addrs == nil {
		part.addrs = []netip.Addr{}
	}
	c.parts[part.part] = part.addrs
}

// complete returns the list of that version, if all of its parts are here.
func (c *claimant) complete(version uint64) ([]netip.Addr, bool) {
	if c.coming != version || len(c.parts) == 0 || slices.ContainsFunc(c.parts, func(p []netip.Addr) bool { return p == nil }) {
		return nil, false
	}
	list := slices.Concat(c.parts...)
	ok := slices.IsSortedFunc(list, netip.Addr.Compare) && len(slices.Compact(slices.Clone(list))) == len(list)
	return list, ok && len(list) <= MaxAddrs
}

// receiveHeartbeat takes a heartbeat and answers it.
func (m *Member) receiveHeartbeat(p *peer, h heartbeat) {
	c := m.claimant(p)
	lapsed := !c.promised || m.now > c.deadline
	c.lastSeen, c.spoke, c.excluded, c.leaving, c.epoch = m.now, true, h.excluded, h.leaving, h.epoch
	if !m.vote {
		return
	}
	if h.epoch != m.voters.Epoch || !m.mayVote() {
		m.answer(p, c, h.seq, 0)
		return
	}
	changed := false
	if h.version != c.version {
		if list, ok := c.complete(h.version); ok {
			m.replace(c, h.version, list)
			changed = true
		}
	}
	if c.version == 0 {
		m.answer(p, c, h.seq, 0)
		return
	}
	// What is granted later is granted for this request: its round ends before the promise.
	c.seq, c.deadline, c.promised = h.seq, m.now+m.cfg.Timing.Grant+m.cfg.Timing.Guard, true
	if lapsed || changed || len(c.refused) > 0 {
		m.promise(c)
	}
	m.answer(p, c, h.seq, c.version)
	if changed {
		m.again(c)
	}
}

// replace gives the claimant another list. What it does not claim any more is free: it has
// left the node's fence before the list was sent.
func (m *Member) replace(c *claimant, version uint64, list []netip.Addr) {
	kept := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		kept[a] = true
	}
	for _, a := range c.list {
		if !kept[a] && m.voter.holder[a] == c {
			delete(m.voter.holder, a)
		}
		if !kept[a] {
			delete(c.contested, a)
		}
	}
	c.version, c.list, c.refused = version, list, nil
}

// promise grants to the claimant what is not promised to another node.
func (m *Member) promise(c *claimant) {
	c.refused = c.refused[:0]
	for i, a := range c.list {
		h := m.voter.holder[a]
		switch {
		case h == nil || h == c || m.now > h.deadline:
			m.voter.holder[a] = c
			delete(c.contested, a)
			if h != nil {
				delete(h.contested, a)
			}
		default:
			c.refused = append(c.refused, uint16(i))
			h.contested[a] = m.now
		}
	}
}

// Wake is called when WakeAt is over: promises have ended, and those that wait for the
// addresses are told at once.
func (m *Member) Wake(now time.Duration) []Packet {
	m.now = now
	m.again(nil)
	return m.flush()
}

// again answers once more to those that were refused something, but not to one of them.
func (m *Member) again(but *claimant) {
	if !m.mayVote() {
		return
	}
	for _, p := range m.ordered(func(*peer) bool { return true }) {
		c := m.voter.claimants[p.id]
		if c == nil || c == but || len(c.refused) == 0 || !c.promised || m.now > c.deadline {
			continue
		}
		was := len(c.refused)
		if m.promise(c); len(c.refused) < was {
			m.answer(p, c, c.seq, c.version)
		}
	}
}

// WakeAt returns when the first promise ends that another node waits for.
func (m *Member) WakeAt() (at time.Duration, ok bool) {
	for _, c := range m.voter.claimants {
		for _, i := range c.refused {
			h := m.voter.holder[c.list[i]]
			if h != nil && h != c && (!ok || h.deadline < at) {
				at, ok = h.deadline, true
			}
		}
	}
	return at + 1, ok
}

// answer sends what is granted.
func (m *Member) answer(p *peer, c *claimant, seq uint64, version uint64) {
	g := grant{seq: seq, epoch: m.voters.Epoch, version: version}
	g.out, g.dead = m.outLists()
	if version != 0 {
		g.refused = slices.Clone(c.refused)
		g.contested = m.contested(c)
	}
	m.post(p, message{header: header{kind: kindGrant}, grant: g})
}

// contested returns which of the claimant's addresses another node has asked for lately.
func (m *Member) contested(c *claimant) (all []uint16) {
	if len(c.contested) == 0 {
		return nil
	}
	for i, a := range c.list {
		if at, ok := c.contested[a]; ok && m.now-at <= 3*m.cfg.Timing.Beat {
			all = append(all, uint16(i))
		}
	}
	return all
}

// outLists returns the nodes that are silent or not ready, as this voter knows, and those of them
// that are dead: it has heard them, and they fell silent without having said that they leave. A
// node where no speaker runs is not dead.
func (m *Member) outLists() (out, dead []uint32) {
	begun := m.now-m.cfg.Start > 2*m.silence()
	for id := range m.peers {
		c := m.voter.claimants[id]
		silent := begun && id != m.self && (c == nil || m.now-c.lastSeen > m.suspicion())
		if silent || c != nil && c.excluded {
			out = append(out, uint32(id>>32))
		}
		if id != m.self && c != nil && c.spoke && !c.leaving && m.now-c.lastSeen > m.silence() {
			dead = append(dead, uint32(id>>32))
		}
	}
	slices.Sort(out)
	slices.Sort(dead)
	return out[:min(len(out), maxOut)], dead[:min(len(dead), maxDead)]
}
