package election

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// tick is the step of simulated time.
const tick = 10 * time.Millisecond

// A fence is the kernel's fence as in package fence: late actions of a node's process have no effect.
type simFence struct {
	held     map[netip.Addr]bool
	ticket   [Slots]time.Duration // its end, by the node's clock
	granted  [Slots]time.Duration
	lastUsed [Slots]time.Duration
}

func (f *simFence) open(now time.Duration) bool {
	for i := range Slots {
		if now < f.ticket[i] && now < f.granted[i] {
			return true
		}
	}
	return false
}

// A simNode is a process, its kernel and its clock.
type simNode struct {
	name   string
	m      *Member
	fence  simFence
	rate   float64       // of its clock
	offset time.Duration // of its clock
	paused int           // remaining ticks
	inbox  []simPacket   // in the socket's buffer
	ops    []func()      // the process's next steps, one a tick or all at once
	next   time.Duration // the next beat, by its clock
	mine   []netip.Addr  // wanted addresses
	born   int           // the tick of its process' start
}

type simPacket struct {
	from, to int
	due      int // tick
	data     []byte
}

// A sim is some nodes and the network between them.
type sim struct {
	t      testing.TB
	rng    *rand.Rand
	step   int
	nodes  []*simNode
	air    []simPacket
	fault  func(s *sim, p simPacket) []int // delays in ticks of the copies that arrive
	sent   int
	bytes  int
	voters Voters        // the API server's list
	since  int           // the tick in which the list was written
	lag    int           // ticks until the last node knows the list
	grant  time.Duration // how long the kernel lets a node speak after a request
	broken string        // the first moment with two owners; empty: none
}

var simKey = []byte("0123456789abcdef0123456789abcdef")

func newSim(t testing.TB, n int, seed uint64) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), voters: Voters{Epoch: 1}, grant: DefaultTiming.Grant}
	s.fault = func(*sim, simPacket) []int { return []int{0} }
	for i := range n {
		node := &simNode{name: fmt.Sprintf("node-%d", i+1), rate: 1, offset: time.Duration(s.rng.Int64N(1e12))}
		s.nodes = append(s.nodes, node)
		if i < 7 {
			s.voters.Names = append(s.voters.Names, node.name)
		}
	}
	for i := range s.nodes {
		s.restart(i)
	}
	return s
}

func (s *sim) names() (all []string) {
	for _, n := range s.nodes {
		all = append(all, n.name)
	}
	return all
}

// known returns the list of voters that node i knows. The last node knows a list lag ticks after it was written.
func (s *sim) known(i int) Voters {
	if s.lag > 0 && s.step < s.since+s.lag*i/len(s.nodes) {
		return Voters{}
	}
	return s.voters
}

// first lets node i make the first list of voters if there is none, once the node has run for some ticks.
func (s *sim) first(i, ticks int) {
	n := s.nodes[i]
	if n.paused > 0 || s.voters.Epoch > 0 || n.m.Voters().Epoch > 0 || s.step-n.born < ticks {
		return
	}
	if v, ok := First(n.m.Roll(s.names(), time.Second)); ok {
		s.voters, s.since = v, s.step
	}
}

// clock returns the time by node i's clock.
func (s *sim) clock(i int) time.Duration {
	n := s.nodes[i]
	return n.offset + time.Duration(float64(s.step)*float64(tick)*n.rate)
}

// restart replaces the process of a node; its kernel stays.
func (s *sim) restart(i int) {
	n := s.nodes[i]
	n.fence.held = map[netip.Addr]bool{} // the first step of a process
	n.inbox, n.ops, n.paused, n.next = nil, nil, 0, s.clock(i)
	n.m = New(Config{Self: n.name, Key: simKey, Start: s.clock(i), Timing: DefaultTiming, Random: func() uint64 { return s.rng.Uint64() | 1 }})
	n.m.SetPeers(s.names())
	n.born = s.step
	n.m.SetVoters(s.known(i))
	n.m.Claim(n.mine)
}

func (s *sim) send(from int, packets []Packet) {
	for _, p := range packets {
		s.sent++
		s.bytes += len(p.Data) + 28
		to := slices.Index(s.names(), p.To)
		pkt := simPacket{from: from, to: to, data: p.Data}
		for _, delay := range s.fault(s, pkt) {
			pkt.due = s.step + delay
			s.air = append(s.air, pkt)
		}
	}
}

// run lets time pass, a tick at a time.
func (s *sim) run(ticks int, each func()) {
	for range ticks {
		s.step++
		var rest []simPacket
		for _, p := range s.air {
			if p.due > s.step {
				rest = append(rest, p)
			} else if n := s.nodes[p.to]; len(n.inbox) < 200 {
				n.inbox = append(n.inbox, p)
			}
		}
		s.air = rest
		for i := range s.nodes {
			s.work(i)
		}
		s.check()
		if each != nil {
			each()
		}
	}
}

// prefer makes each node want the addresses that it owns by a fixed choice among the nodes that are not out, and keep
// the addresses that it holds until it is asked for them, as package layer2 does.
func (s *sim) prefer(all []netip.Addr) {
	for i, n := range s.nodes {
		out, ok := n.m.Out()
		if !ok || n.paused > 0 {
			continue
		}
		contested := n.m.Contested()
		n.mine = nil
		for j, a := range all {
			owner := -1
			for k := range s.nodes {
				if at := (j + k) % len(s.nodes); !out[s.nodes[at].name] {
					owner = at
					break
				}
			}
			if owner == i || owner >= 0 && n.m.Granted(a) && !contested[a] {
				n.mine = append(n.mine, a)
			}
		}
	}
}

// work is the work of a process in one tick.
func (s *sim) work(i int) {
	n := s.nodes[i]
	if n.paused > 0 {
		n.paused--
		return
	}
	for len(n.ops) > 0 { // a pause may fall between a decision and its steps
		op := n.ops[0]
		n.ops = n.ops[1:]
		op()
	}
	for _, p := range n.inbox {
		out, err := n.m.Receive(s.clock(i), p.data)
		if err != nil {
			s.t.Fatalf("%s: %v", n.name, err)
		}
		s.send(i, out)
		s.apply(i)
	}
	n.inbox = nil
	if at, ok := n.m.WakeAt(); ok && s.clock(i) >= at {
		s.send(i, n.m.Wake(s.clock(i)))
	}
	if s.clock(i) >= n.next {
		n.next = s.clock(i) + DefaultTiming.Beat
		s.beat(i)
	}
}

// beat makes the ticket now and sends in the next tick.
func (s *sim) beat(i int) {
	n := s.nodes[i]
	slot := n.m.NextSlot()
	if s.clock(i)-n.fence.lastUsed[slot] < s.grant && n.fence.lastUsed[slot] != 0 {
		return
	}
	n.fence.ticket[slot] = s.clock(i) + s.grant
	n.ops = append(n.ops, func() {
		s.claim(i)
		s.send(i, n.m.Beat(s.clock(i)))
		s.apply(i)
	})
}

// claim asks for the addresses that the node wants. Addresses that it gives up leave the fence first.
func (s *sim) claim(i int) {
	n := s.nodes[i]
	for a := range n.fence.held {
		if !slices.Contains(n.mine, a) {
			delete(n.fence.held, a)
		}
	}
	n.m.Claim(n.mine)
}

// apply carries out a Change in the next tick.
func (s *sim) apply(i int) {
	n := s.nodes[i]
	c := n.m.Take()
	if !c.Confirm && len(c.Add)+len(c.Drop) == 0 {
		return
	}
	n.ops = append(n.ops, func() {
		for _, a := range c.Drop {
			delete(n.fence.held, a)
		}
		for _, a := range c.Add {
			n.fence.held[a] = true
		}
	}, func() {
		if c.Confirm {
			n.fence.granted[c.Slot] = s.clock(i) + s.grant
			n.fence.lastUsed[c.Slot] = s.clock(i)
		}
	})
}

// owners returns the nodes whose kernel lets them announce an address.
func (s *sim) owners(a netip.Addr) (all []int) {
	for i, n := range s.nodes {
		if n.fence.held[a] && n.fence.open(s.clock(i)) {
			all = append(all, i)
		}
	}
	return all
}

// check records an address with two owners.
func (s *sim) check() {
	addrs := map[netip.Addr]int{}
	for i, n := range s.nodes {
		if !n.fence.open(s.clock(i)) {
			continue
		}
		for a := range n.fence.held {
			if other, ok := addrs[a]; ok && s.broken == "" {
				s.broken = fmt.Sprintf("at %v %v is %s's and %s's%s", time.Duration(s.step)*tick, a, s.nodes[other].name, n.name, s.dump(a))
			}
			addrs[a] = i
		}
	}
}

// addrs returns n addresses, some of each family.
func addrs(n int) (all []netip.Addr) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for i := range n {
		if i%4 == 3 {
			all = append(all, b)
			b = b.Next()
		} else {
			all = append(all, a)
			a = a.Next()
		}
	}
	return all
}

func (s *sim) dump(a netip.Addr) string {
	out := ""
	for i, n := range s.nodes {
		out += fmt.Sprintf("\n%s now %v rate %v epoch %d deadline %v held %v/%v want %v paused %d", n.name, s.clock(i)-n.offset, n.rate, n.m.voters.Epoch, n.m.owner.deadline-n.offset, n.m.owner.granted[a], n.fence.held[a], slices.Contains(n.mine, a), n.paused)
		if h := n.m.voter.holder[a]; h != nil {
			out += fmt.Sprintf(" promised to %x until %v", h.id>>48, h.deadline-n.offset)
		}
		for j := range Slots {
			if s.clock(i) < n.fence.ticket[j] && s.clock(i) < n.fence.granted[j] {
				out += fmt.Sprintf(" slot %d ticket %v granted %v", j, n.fence.ticket[j]-n.offset, n.fence.granted[j]-n.offset)
			}
		}
	}
	return out
}
