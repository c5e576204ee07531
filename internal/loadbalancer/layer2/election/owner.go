package election

import (
	"net/netip"
	"slices"
	"time"
)

// Slots is the number of requests that the fence can tell apart.
const Slots = 32

// keptLists is how many lists before the present one a grant may still name.
const keptLists = 8

// An owner is the part of a Member that asks for addresses.
type owner struct {
	// baseVersion is the version before the first list. It is random, like the first seq, so that this process does not
	// take an answer to the process before it.
	baseVersion uint64
	version     uint64
	lists       map[uint64][]netip.Addr // by version
	since       map[netip.Addr]uint64   // each list from this version on has the address
	want        []netip.Addr            // the list of this version
	excluded    bool
	leaving     bool

	seq       uint64
	rounds    []*round // with grants that may still count, oldest first
	granted   map[netip.Addr]bool
	confirmed uint64 // the last round that granted all held addresses
	deadline  time.Duration
	lease     time.Duration // the end of this node's hold on the Lease
	latest    map[nodeID]opinion
	change    Change
}

// A round is one request and its answers.
type round struct {
	seq     uint64
	at      time.Duration // the request was sent
	answers map[nodeID]grant
}

// An opinion is a voter's last word about the nodes.
type opinion struct {
	at    time.Duration
	out   []uint32
	dead  []uint32
	epoch uint64
	since time.Duration // the voter has had this list of voters since then
}

// A Change is work for the caller, in the order of the fields.
type Change struct {
	Drop    []netip.Addr // must leave the fence: another node may have them
	Add     []netip.Addr // may enter the fence: no other node has them
	Confirm bool         // the request of Slot was granted
	Slot    int
}

// Granted reports whether the node may announce an address, until Deadline.
func (m *Member) Granted(a netip.Addr) bool { return m.owner.granted[a] && m.now < m.owner.deadline }

// Claimed returns the addresses that the node asks for, sorted. The caller must not change the slice.
func (m *Member) Claimed() []netip.Addr { return m.owner.want }

// Deadline returns the end of the grant.
func (m *Member) Deadline() time.Duration { return m.owner.deadline }

// NextSlot returns the slot of the next Beat.
func (m *Member) NextSlot() int { return int((m.owner.seq + 1) % Slots) }

// SetExcluded says whether other nodes are better owners than this node.
func (m *Member) SetExcluded(excluded bool) { m.owner.excluded = excluded }

// Leave makes the next Beat a goodbye. The node is excluded, and its silence does not mean that it is dead.
func (m *Member) Leave() { m.owner.excluded, m.owner.leaving = true, true }

// SetLease sets the end of this node's hold on the Lease, counted from before the renewal. An earlier end than before says
// that another node has the Lease. The node then loses at once the addresses that it holds by the Lease's vote.
func (m *Member) SetLease(until time.Duration) {
	o := &m.owner
	earlier := until < o.lease
	o.lease = until
	if !earlier {
		return
	}
	if i := slices.IndexFunc(o.rounds, func(r *round) bool { return r.seq == o.confirmed }); i >= 0 {
		r := o.rounds[i]
		m.takeGrants(r, nil, o.lost(m.won(r)), r.at+m.cfg.Timing.Grant)
	}
}

// Take returns the changes since the last Take.
func (m *Member) Take() Change {
	c := m.owner.change
	m.owner.change = Change{}
	return c
}

// Claim replaces the addresses that the node asks for. Addresses that it leaves out must have left the fence. The next
// Beat sends the list.
func (m *Member) Claim(want []netip.Addr) {
	o := &m.owner
	want = slices.Clone(want)
	slices.SortFunc(want, netip.Addr.Compare)
	want = slices.Compact(want)
	want = want[:min(len(want), MaxAddrs)]
	if o.version != 0 && slices.Equal(want, o.want) {
		return
	}
	if o.version == 0 {
		o.version = o.baseVersion
	}
	o.version++
	since := make(map[netip.Addr]uint64, len(want))
	for _, a := range want {
		if v, ok := o.since[a]; ok {
			since[a] = v
		} else {
			since[a] = o.version
		}
	}
	for a := range o.granted {
		if _, ok := since[a]; !ok {
			delete(o.granted, a)
		}
	}
	o.change.Add = slices.DeleteFunc(o.change.Add, func(a netip.Addr) bool { _, ok := since[a]; return !ok })
	o.want, o.since = want, since
	o.lists[o.version] = want
	delete(o.lists, o.version-keptLists)
}

// Beat asks all voters. While there is no list of voters, it tells the nodes that make the first list about this node.
// The caller must have made the ticket of NextSlot before it read the clock.
func (m *Member) Beat(now time.Duration) []Packet {
	m.now = now
	o := &m.owner
	if n := len(o.rounds); n > 0 {
		m.evaluate(o.rounds[n-1], true)
	}
	o.seq++
	o.rounds = slices.DeleteFunc(o.rounds, func(r *round) bool { return now-r.at > m.cfg.Timing.Grant })
	o.rounds = append(o.rounds, &round{seq: o.seq, at: now, answers: map[nodeID]grant{}})
	makers := m.listMakers()
	for _, p := range m.ordered(func(p *peer) bool { return p.votes || p.id == m.self || makers[p.id] }) {
		m.sendClaims(p)
		m.post(p, message{header: header{kind: kindHeartbeat}, heartbeat: heartbeat{seq: o.seq, epoch: m.voters.Epoch, version: o.version, excluded: o.excluded, leaving: o.leaving}})
	}
	return m.flush()
}

// sendClaims sends the list to a peer that lacks it.
func (m *Member) sendClaims(p *peer) {
	o := &m.owner
	if o.version == 0 || p.listVersion == o.version {
		return
	}
	parts := max(1, (len(o.want)+addrsPerPart-1)/addrsPerPart)
	for i := range parts {
		part := o.want[i*addrsPerPart : min(len(o.want), (i+1)*addrsPerPart)]
		m.post(p, message{header: header{kind: kindClaims}, claims: claims{version: o.version, part: uint16(i), parts: uint16(parts), addrs: part}})
	}
}

// receiveGrant takes a voter's answer.
func (m *Member) receiveGrant(p *peer, g grant) {
	o := &m.owner
	last, known := o.latest[p.id]
	if !known || last.epoch != g.epoch {
		last.since = m.now
	}
	o.latest[p.id] = opinion{m.now, g.out, g.dead, g.epoch, last.since}
	if p.listVersion = g.version; g.epoch != m.voters.Epoch || !p.votes || g.version == 0 {
		return
	}
	for i, r := range o.rounds {
		if r.seq == g.seq {
			r.answers[p.id] = g
			m.evaluate(r, i < len(o.rounds)-1)
			return
		}
	}
}

// evaluate finds out which addresses a round has won. The voters that count in it have granted them until the round's
// own deadline, so that one deadline is enough for the node. final says that the round waits for no more answers.
func (m *Member) evaluate(r *round, final bool) {
	o := &m.owner
	end := r.at + m.cfg.Timing.Grant
	if r.seq < o.confirmed || m.now >= end || o.version == 0 {
		return
	}
	votes := len(r.answers)
	if m.leaseVotes(end) {
		votes++
	}
	if votes < m.voters.majority() {
		return
	}
	if m.unchanged(r) {
		m.takeGrants(r, nil, nil, end)
		return
	}
	won := m.won(r)
	lost := o.lost(won)
	if len(lost) > 0 && (!final && votes < len(m.voters.Names) || r.seq == o.confirmed) {
		return // later answers may still grant them, and a confirmed round stays confirmed
	}
	m.takeGrants(r, won, lost, end)
}

// lost returns the addresses that the node holds and that are not in won.
func (o *owner) lost(won map[netip.Addr]bool) (all []netip.Addr) {
	for a := range o.granted {
		if !won[a] {
			all = append(all, a)
		}
	}
	return all
}

// unchanged reports whether all answers grant the whole present list and the node holds all of it, the usual case.
func (m *Member) unchanged(r *round) bool {
	for _, g := range r.answers {
		if g.version != m.owner.version || len(g.refused) > 0 {
			return false
		}
	}
	return len(m.owner.granted) == len(m.owner.want)
}

// takeGrants replaces the node's addresses by the addresses that a round has won.
func (m *Member) takeGrants(r *round, won map[netip.Addr]bool, lost []netip.Addr, end time.Duration) {
	o := &m.owner
	for _, a := range lost {
		delete(o.granted, a)
		o.change.Drop = append(o.change.Drop, a)
	}
	o.change.Add = slices.DeleteFunc(o.change.Add, func(a netip.Addr) bool { return slices.Contains(lost, a) })
	for a := range won {
		if !o.granted[a] {
			o.granted[a] = true
			o.change.Add = append(o.change.Add, a)
			o.change.Drop = slices.DeleteFunc(o.change.Drop, func(d netip.Addr) bool { return d == a })
		}
	}
	if r.seq > o.confirmed {
		o.confirmed, o.deadline = r.seq, end
		o.change.Confirm, o.change.Slot = true, int(r.seq%Slots)
	}
}

// leaseVotes reports whether the Lease's vote counts in a round that ends at that time.
func (m *Member) leaseVotes(end time.Duration) bool {
	return slices.Contains(m.voters.Names, LeaseVoter) && m.owner.lease >= end
}

// won returns the addresses that a majority has granted in the round.
func (m *Member) won(r *round) map[netip.Addr]bool {
	o := &m.owner
	need := m.voters.majority()
	votes := make(map[netip.Addr]int, len(o.want))
	if m.leaseVotes(r.at + m.cfg.Timing.Grant) {
		need--
	}
	for _, g := range r.answers {
		list, ok := o.lists[g.version]
		if !ok {
			continue
		}
		next := 0 // index into refused, which is sorted
		for i, a := range list {
			if next < len(g.refused) && int(g.refused[next]) == i {
				next++
				continue
			}
			if since, ok := o.since[a]; ok && since <= g.version {
				votes[a]++
			}
		}
	}
	won := make(map[netip.Addr]bool, len(o.want))
	for _, a := range o.want {
		if votes[a] >= need {
			won[a] = true
		}
	}
	return won
}

// Contested returns the node's addresses for which another node asks.
func (m *Member) Contested() map[netip.Addr]bool {
	o := &m.owner
	all := map[netip.Addr]bool{}
	for _, r := range o.rounds[max(0, len(o.rounds)-2):] {
		for _, g := range r.answers {
			list := o.lists[g.version]
			for _, i := range g.contested {
				if int(i) < len(list) {
					all[list[i]] = true
				}
			}
		}
	}
	return all
}

// Silent returns the voters that have not answered lately, sorted.
func (m *Member) Silent() (names []string) {
	for _, name := range m.voters.Names {
		o, known := m.owner.latest[idOf(name)]
		if name == LeaseVoter {
			o.at, known = m.owner.lease, m.owner.lease > 0
		}
		if !known || m.now-o.at > m.silence() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Out returns the nodes that a majority of the voters calls silent or excluded. ok is false while no majority is heard
// and so nothing is known.
func (m *Member) Out() (names map[string]bool, ok bool) {
	return m.byMajority(func(v opinion) []uint32 { return v.out })
}

// Dead returns the nodes that a majority of the voters has heard once and does not hear any more, except nodes that
// have said goodbye. ok is as for Out.
func (m *Member) Dead() (names map[string]bool, ok bool) {
	return m.byMajority(func(v opinion) []uint32 { return v.dead })
}

// byMajority returns the nodes that a majority of the voters has in a list. ok is as for Out.
func (m *Member) byMajority(list func(opinion) []uint32) (names map[string]bool, ok bool) {
	o := &m.owner
	answering, count := 0, map[uint32]int{}
	for id, v := range o.latest {
		if p := m.peers[id]; p == nil || !p.votes || m.now-v.at > m.silence() {
			continue
		}
		answering++
		for _, id := range list(v) {
			count[id]++
		}
	}
	need := m.voters.majority()
	if m.leaseVotes(m.now) {
		answering, need = answering+1, need-1
	}
	if answering < m.voters.majority() {
		return nil, false
	}
	names = map[string]bool{}
	for id, p := range m.peers {
		if n := count[uint32(id>>32)]; n > 0 && n >= need {
			names[p.name] = true
		}
	}
	return names, true
}
