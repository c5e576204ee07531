package election

import (
	"net/netip"
	"slices"
	"time"
)

// A voter is the part of a Member that promises addresses to nodes.
type voter struct {
	// holder is the last node to get an address. The promise lasts until that node's deadline, or until the node does
	// not claim the address any more.
	holder    map[netip.Addr]*claimant
	claimants map[nodeID]*claimant
}

// A claimant is a voter's knowledge of a node.
type claimant struct {
	id       nodeID
	lastSeen time.Duration // the last heartbeat
	heard    bool          // there was a heartbeat
	excluded bool
	leaving  bool
	epoch    uint64        // of the node's list of voters
	seq      uint64        // of the heartbeat with the promise
	deadline time.Duration // of the promise for all its addresses
	promised bool          // the deadline is set
	version  uint64        // of list; 0: none
	list     []netip.Addr  // sorted
	refused  []uint16      // positions in list
	// contested has the addresses of list for which another node asked, and when.
	contested map[netip.Addr]time.Duration
	// A list that arrives in parts.
	incoming uint64 // its version
	parts    [][]netip.Addr
}

// silence is the time after which the promise to a silent node has ended.
func (m *Member) silence() time.Duration { return m.cfg.Timing.Grant + m.cfg.Timing.Guard }

// suspicion is the silence after which a node counts as out. It is shorter than a promise, so that the next owner asks
// in time and gets its answer when the promise ends.
func (m *Member) suspicion() time.Duration { return m.cfg.Timing.Grant * 7 / 10 }

// mayVote reports whether this member may promise anything. In its first moments, promises of the process before it may
// still last.
func (m *Member) mayVote() bool { return m.votes && m.now-m.cfg.Start >= m.silence() }

// claimant returns the claimant of a peer, and makes it if needed.
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
	if c.incoming != part.version || len(c.parts) != int(part.parts) {
		c.incoming, c.parts = part.version, make([][]netip.Addr, part.parts)
	}
	if part.addrs == nil {
		part.addrs = []netip.Addr{}
	}
	c.parts[part.part] = part.addrs
}

// complete returns the list of that version, if all its parts have arrived.
func (c *claimant) complete(version uint64) ([]netip.Addr, bool) {
	if c.incoming != version || len(c.parts) == 0 || slices.ContainsFunc(c.parts, func(p []netip.Addr) bool { return p == nil }) {
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
	c.lastSeen, c.heard, c.excluded, c.leaving, c.epoch = m.now, true, h.excluded, h.leaving, h.epoch
	if !m.votes {
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
	// A later grant also belongs to this request, whose round ends before the promise.
	c.seq, c.deadline, c.promised = h.seq, m.now+m.cfg.Timing.Grant+m.cfg.Timing.Guard, true
	if lapsed || changed || len(c.refused) > 0 {
		m.promise(c)
	}
	m.answer(p, c, h.seq, c.version)
	if changed {
		m.answerWaiting(c)
	}
}

// replace gives the claimant another list. Addresses that the new list lacks are free, because they left the node's
// fence before the node sent the list.
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

// promise grants the claimant its addresses, except addresses that are promised to another node.
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

// Wake must be called at the time of WakeAt. Promises have ended, and the nodes that wait for the addresses get an answer
// at once.
func (m *Member) Wake(now time.Duration) []Packet {
	m.now = now
	m.answerWaiting(nil)
	return m.flush()
}

// answerWaiting answers again to the claimants with a refused address that is free now, except one claimant.
func (m *Member) answerWaiting(except *claimant) {
	if !m.mayVote() {
		return
	}
	for _, p := range m.ordered(func(*peer) bool { return true }) {
		c := m.voter.claimants[p.id]
		if c == nil || c == except || len(c.refused) == 0 || !c.promised || m.now > c.deadline {
			continue
		}
		before := len(c.refused)
		if m.promise(c); len(c.refused) < before {
			m.answer(p, c, c.seq, c.version)
		}
	}
}

// WakeAt returns the time at which the first promise ends for whose address another node waits; false: no node waits.
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

// answer sends a grant.
func (m *Member) answer(p *peer, c *claimant, seq uint64, version uint64) {
	g := grant{seq: seq, epoch: m.voters.Epoch, version: version}
	g.out, g.dead = m.outLists()
	if version != 0 {
		g.refused = slices.Clone(c.refused)
		g.contested = m.contested(c)
	}
	m.post(p, message{header: header{kind: kindGrant}, grant: g})
}

// contested returns the positions of the claimant's addresses for which another node has asked lately.
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

// outLists returns the nodes that this voter calls silent or excluded, and the dead nodes among them. A dead node was
// heard once and fell silent without a goodbye. A node that never ran a speaker is not dead.
func (m *Member) outLists() (out, dead []uint32) {
	settled := m.now-m.cfg.Start > 2*m.silence()
	for id := range m.peers {
		c := m.voter.claimants[id]
		silent := settled && id != m.self && (c == nil || m.now-c.lastSeen > m.suspicion())
		if silent || c != nil && c.excluded {
			out = append(out, uint32(id>>32))
		}
		if id != m.self && c != nil && c.heard && !c.leaving && m.now-c.lastSeen > m.silence() {
			dead = append(dead, uint32(id>>32))
		}
	}
	slices.Sort(out)
	slices.Sort(dead)
	return out[:min(len(out), maxOut)], dead[:min(len(dead), maxDead)]
}
