package election

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Timing has the durations of an election.
type Timing struct {
	// Beat is the time between two heartbeats.
	Beat time.Duration
	// Grant is the duration of a grant. The owner counts from sending its request, the voter from receiving it.
	Grant time.Duration
	// Guard is how much longer a voter keeps its promise, because clocks drift.
	Guard time.Duration
}

// DefaultTiming moves an address in about 0.6 s.
var DefaultTiming = Timing{Beat: 100 * time.Millisecond, Grant: 500 * time.Millisecond, Guard: 50 * time.Millisecond}

// LeaseVoter is the name of a voter that is not a node. The holder of a Lease in the API has its vote, so that one of two
// nodes can be lost.
const LeaseVoter = "@lease"

// Voters is a list of voters. First makes the first list. Next makes a list with the next number, which differs by one
// voter.
type Voters struct {
	Epoch uint64   `json:"epoch"`
	Names []string `json:"names"`
}

func (v Voters) majority() int { return len(v.Names)/2 + 1 }

// A Packet is a message to a peer.
type Packet struct {
	To   string
	Data []byte
}

// A Config configures a Member.
type Config struct {
	Self   string
	Key    []byte        // the secret that all members share
	Start  time.Duration // by the clock of all times that the methods get
	Timing Timing
	Random func() uint64 // returns a number that is not zero and cannot be guessed
}

// A Member is one node's part in the election: it owns addresses, and votes about the addresses of all nodes. It is pure:
// packets, time and wanted addresses go in, packets and held addresses come out. Only one goroutine may use it.
//
// The caller keeps this order:
//
//	Release: take addresses out of the fence, then call Claim without them.
//	Request: fence.Ticket(slot), then read the clock, then Beat, then send the packets.
//	Grant:   after Receive and Wake call Take: first Drop leaves the fence, then Add enters it,
//	         then fence.Confirm(slot).
type Member struct {
	cfg    Config
	self   nodeID
	voters Voters
	votes  bool // this member is a voter
	peers  map[nodeID]*peer
	now    time.Duration
	out    []Packet

	owner owner
	voter voter
}

// A peer is another node, or this one.
type peer struct {
	name string
	id   nodeID
	link link
	// listVersion is the version of this member's list that the peer has, by its last message.
	listVersion uint64
	votes       bool
}

// New returns a Member without peers and voters.
func New(cfg Config) *Member {
	m := &Member{cfg: cfg, self: idOf(cfg.Self), peers: map[nodeID]*peer{}, now: cfg.Start}
	m.owner = owner{baseVersion: cfg.Random() >> 1, seq: cfg.Random() >> 1, lists: map[uint64][]netip.Addr{}, since: map[netip.Addr]uint64{}, granted: map[netip.Addr]bool{}, latest: map[nodeID]opinion{}}
	m.voter = voter{holder: map[netip.Addr]*claimant{}, claimants: map[nodeID]*claimant{}}
	m.SetPeers(nil)
	return m
}

// SetPeers replaces the nodes. The member forgets a node that goes, except a promise to it.
func (m *Member) SetPeers(names []string) {
	now := map[nodeID]bool{m.self: true}
	for _, name := range append([]string{m.cfg.Self}, names...) {
		id := idOf(name)
		if now[id] = true; m.peers[id] == nil {
			m.peers[id] = &peer{name: name, id: id, link: link{id: id, next: m.cfg.Random()}}
		}
	}
	maps.DeleteFunc(m.peers, func(id nodeID, _ *peer) bool { return !now[id] })
	maps.DeleteFunc(m.voter.claimants, func(id nodeID, c *claimant) bool { return !now[id] && m.now > c.deadline })
	m.markVoters()
}

// SetVoters takes a list of voters, unless the member has the same or a later one.
func (m *Member) SetVoters(v Voters) {
	if v.Epoch <= m.voters.Epoch {
		return
	}
	m.voters = v
	m.owner.rounds = nil // their grants belong to the list before
	clear(m.owner.latest)
	m.markVoters()
}

// Voters returns the member's list of voters.
func (m *Member) Voters() Voters { return m.voters }

// markVoters marks the peers that vote.
func (m *Member) markVoters() {
	for _, p := range m.peers {
		p.votes = slices.Contains(m.voters.Names, p.name)
	}
	m.votes = m.peers[m.self].votes
}

// Receive takes a packet and returns the packets to send. An error says why the packet was refused.
func (m *Member) Receive(now time.Duration, data []byte) ([]Packet, error) {
	m.now = now
	msg, err := open(m.cfg.Key, data)
	if err != nil {
		return nil, err
	}
	p := m.peers[msg.from]
	if msg.to != m.self || msg.from == m.self || p == nil {
		return nil, nil // from a node that is new or gone, or for another node
	}
	ok, needsHello := p.link.accept(msg.header, m.cfg.Random)
	if needsHello && p.link.mayGreet(now, m.cfg.Timing.Grant) {
		m.send(p, message{header: p.link.hello(m.self, msg.nonce)})
	}
	if ok {
		m.deliver(p, msg)
	}
	return m.flush(), nil
}

// deliver handles an authentic new message from p.
func (m *Member) deliver(p *peer, msg message) {
	switch msg.kind {
	case kindHeartbeat:
		m.receiveHeartbeat(p, msg.heartbeat)
	case kindClaims:
		m.collect(p, msg.claims)
	case kindGrant:
		m.receiveGrant(p, msg.grant)
	}
}

// post sends a message to p. A message to this member itself needs no network.
func (m *Member) post(p *peer, msg message) {
	if p.id == m.self {
		m.deliver(p, msg)
		return
	}
	msg.header = p.link.header(msg.kind, m.self)
	m.send(p, msg)
}

func (m *Member) send(p *peer, msg message) {
	m.out = append(m.out, Packet{To: p.name, Data: msg.seal(m.cfg.Key)})
}

func (m *Member) flush() []Packet {
	out := m.out
	m.out = nil
	return out
}

// ordered returns the peers for which keep is true, in the order of their ids.
func (m *Member) ordered(keep func(*peer) bool) []*peer {
	var all []*peer
	for _, p := range m.peers {
		if keep(p) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
	return all
}
