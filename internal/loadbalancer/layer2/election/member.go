package election

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Timing is how long things last.
type Timing struct {
	// Beat is the time between two heartbeats.
	Beat time.Duration
	// Grant is how long a grant lasts: for the owner from sending its request on, for the
	// voter from receiving it on.
	Grant time.Duration
	// Guard is what a voter adds before it grants an address to another node: clocks drift.
	Guard time.Duration
}

// DefaultTiming moves an address in about 0.6 s.
var DefaultTiming = Timing{Beat: 100 * time.Millisecond, Grant: 500 * time.Millisecond, Guard: 50 * time.Millisecond}

// LeaseVoter is the name of a voter that is no node: whoever holds a Lease in the API has
// its vote. It makes two nodes able to lose one.
const LeaseVoter = "@lease"

// Voters is the list of those that grant (First). Each list has a number; the next one differs by
// one voter (Next).
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

// A Config says what a Member is.
type Config struct {
	Self   string
	Key    []byte        // the secret that all members share
	Start  time.Duration // by the clock whose time all methods are given
	Timing Timing
	Random func() uint64 // not zero, and not to be guessed
}

// A Member is one node's part in the election: an owner of addresses, and a voter about those
// of all nodes. It is pure: packets, time and what the node wants go in; packets and what the
// node holds come out. It belongs to one goroutine.
//
// The caller, in this order:
//
//	Release: takes addresses out of the fence, then calls Claim without them.
//	Request: fence.Ticket(slot), then reads the clock, then Beat, then sends what it returns.
//	Grant:   after Receive and Wake looks at Take: first Drop leaves the fence, then Add enters
//	         it, then fence.Confirm(slot).
type Member struct {
	cfg    Config
	self   nodeID
	voters Voters
	vote   bool // we are one of the voters
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
	has  uint64 // which list of ours the peer has, as it said last
	vote bool
}

// New returns a Member without peers and voters.
func New(cfg Config) *Member {
	m := &Member{cfg: cfg, self: idOf(cfg.Self), peers: map[nodeID]*peer{}, now: cfg.Start}
	m.owner = owner{first: cfg.Random() >> 1, seq: cfg.Random() >> 1, lists: map[uint64][]netip.Addr{}, since: map[netip.Addr]uint64{}, granted: map[netip.Addr]bool{}, latest: map[nodeID]opinion{}}
	m.voter = voter{holder: map[netip.Addr]*claimant{}, claimants: map[nodeID]*claimant{}}
	m.SetPeers(nil)
	return m
}

// SetPeers says which nodes there are. What is remembered of a node that goes is forgotten,
// but not a promise.
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

// SetVoters takes a list of voters, if it is later than that we have.
func (m *Member) SetVoters(v Voters) {
	if v.Epoch <= m.voters.Epoch {
		return
	}
	m.voters = v
	m.owner.rounds = nil // what others granted, they granted under another list
	clear(m.owner.latest)
	m.markVoters()
}

// Voters returns the list that counts here.
func (m *Member) Voters() Voters { return m.voters }

func (m *Member) markVoters() {
	for _, p := range m.peers {
		p.vote = slices.Contains(m.voters.Names, p.name)
	}
	m.vote = m.peers[m.self].vote
}

// Receive takes a packet and returns what to send. An error says why it was not taken.
func (m *Member) Receive(now time.Duration, data []byte) ([]Packet, error) {
	m.now = now
	msg, err := open(m.cfg.Key, data)
	if err != nil {
		return nil, err
	}
	p := m.peers[msg.from]
	if msg.to != m.self || msg.from == m.self || p == nil {
		return nil, nil // a node that is new or gone
	}
	ok, renew := p.link.accept(msg.header, m.cfg.Random)
	if renew && p.link.greet(now, m.cfg.Timing.Grant) {
		m.send(p, message{header: p.link.hello(m.self, msg.nonce)})
	}
	if ok {
		m.deliver(p, msg)
	}
	return m.flush(), nil
}

// deliver handles a message that is authentic, new, and from p.
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

// post sends a message to p; to ourselves without a network.
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

// ordered returns the peers that keep says, in the order of their ids.
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
