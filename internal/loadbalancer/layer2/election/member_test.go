package election

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// TestTakeover: all nodes want an address and one gets it. After that node is killed, another one has it within 700 ms
// of simulated time.
func TestTakeover(t *testing.T) {
	for _, n := range []int{3, 5} {
		s := newSim(t, n, 1)
		a := addrs(1)
		prefer := func() { s.prefer(a) }
		s.run(100, prefer)
		first := s.owners(a[0])
		if len(first) != 1 {
			t.Fatalf("%d nodes: owners after a second: %v", n, first)
		}
		s.nodes[first[0]].paused = 1 << 30
		died, took := s.step, 0
		s.run(100, func() {
			prefer()
			if o := s.owners(a[0]); took == 0 && len(o) == 1 && o[0] != first[0] {
				took = s.step
			}
		})
		if gap := time.Duration(took-died) * tick; took == 0 || gap > 700*time.Millisecond {
			t.Errorf("%d nodes: taken over after %v", n, gap)
		}
	}
}

// TestMinority: without a majority no node holds anything.
func TestMinority(t *testing.T) {
	s := newSim(t, 3, 1)
	a := addrs(1)
	s.nodes[0].mine = a
	s.run(100, nil)
	s.nodes[1].paused, s.nodes[2].paused = 1<<30, 1<<30
	s.run(100, nil)
	if o := s.owners(a[0]); len(o) != 0 || s.nodes[0].m.Granted(a[0]) {
		t.Errorf("a node of three holds an address alone: %v", o)
	}
	if _, ok := s.nodes[0].m.Out(); ok {
		t.Error("a node of three knows alone who is gone")
	}
}

// TestRelease: an address that one node gives up and another wants moves within two beats.
func TestRelease(t *testing.T) {
	s := newSim(t, 3, 1)
	all := addrs(200)
	s.nodes[0].mine = all
	s.run(100, nil)
	s.nodes[1].mine = all[:150]
	s.run(20, nil)
	if n := len(s.nodes[0].m.Contested()); n != 150 {
		t.Errorf("%d addresses are contested, want 150", n)
	}
	s.nodes[0].mine = all[150:]
	s.run(25, nil)
	for i, a := range all {
		want := 0
		if i < 150 {
			want = 1
		}
		if o := s.owners(a); len(o) != 1 || o[0] != want {
			t.Errorf("%v: owners %v, want %d", a, o, want)
		}
	}
}

// TestOut: all nodes, also those that do not vote, know which nodes are silent or excluded.
func TestOut(t *testing.T) {
	s := newSim(t, 9, 1)
	s.run(200, nil)
	for _, n := range s.nodes {
		if out, ok := n.m.Out(); !ok || len(out) != 0 {
			t.Errorf("%s: %v %v are out, want none", n.name, out, ok)
		}
	}
	s.nodes[2].paused = 1 << 30
	s.nodes[3].m.SetExcluded(true)
	s.run(100, nil)
	for i, n := range s.nodes {
		out, ok := n.m.Out()
		if i != 2 && (!ok || len(out) != 2 || !out["node-3"] || !out["node-4"]) {
			t.Errorf("%s: %v %v are out, want node-3 and node-4", n.name, out, ok)
		}
	}
}

// TestDead: a node is dead that was heard and fell silent. A node is not dead that said goodbye, or was never there, or
// that only a minority calls dead, or that is heard again.
func TestDead(t *testing.T) {
	s := newSim(t, 5, 1)
	s.nodes[4].paused = 1 << 30 // it never ran a speaker
	check := func(when string, want ...string) {
		t.Helper()
		for i, n := range s.nodes {
			if n.paused > 0 || i >= 3 {
				continue
			}
			if dead, ok := n.m.Dead(); !ok || len(dead) != len(want) || len(want) > 0 && !dead[want[0]] {
				t.Errorf("%s, %s: %v %v are dead, want %v", when, n.name, dead, ok, want)
			}
		}
	}
	s.restart(0)
	for i := range 4 {
		s.restart(i) // so that no process has heard node-5
	}
	s.run(300, nil)
	check("at first")
	s.nodes[3].m.Leave()
	s.run(30, nil)
	s.nodes[3].paused = 1 << 30
	s.run(100, nil)
	check("after one has left")
	s.nodes[3].paused = 0
	s.restart(3)
	s.run(100, nil)
	s.nodes[3].m.SetExcluded(true) // it was cut off
	s.run(100, nil)
	check("while it waits")
	s.nodes[3].paused = 1 << 30
	s.run(40, nil)
	check("before its promises end")
	s.run(60, nil)
	check("after one has died", "node-4")
	s.nodes[3].paused = 0
	s.run(30, nil)
	check("after it is back")
	s.nodes[1].paused, s.nodes[2].paused = 1<<30, 1<<30
	s.run(100, nil)
	if dead, ok := s.nodes[0].m.Dead(); ok {
		t.Errorf("two of five say that %v are dead", dead)
	}
}

// TestRestart: a member that restarts exchanges messages with the others again.
func TestRestart(t *testing.T) {
	s := newSim(t, 3, 1)
	a := addrs(5)
	s.nodes[0].mine = a
	s.run(100, nil)
	for i := range s.nodes {
		s.restart(i)
		s.run(90, nil)
		if o := s.owners(a[0]); len(o) != 1 || o[0] != 0 {
			t.Fatalf("after the restart of node %d: owners %v", i, o)
		}
	}
}

// TestLease: of two nodes the one with the Lease survives the other.
func TestLease(t *testing.T) {
	s := newSim(t, 2, 1)
	s.voters = Voters{Epoch: 2, Names: []string{"node-1", "node-2", LeaseVoter}}
	a := addrs(1)
	for i, n := range s.nodes {
		n.mine = a
		s.restart(i)
	}
	lease := func(i int) func() {
		return func() { s.nodes[i].m.SetLease(s.clock(i) + 2*time.Second) }
	}
	s.run(100, lease(1))
	was := s.owners(a[0])
	if len(was) != 1 {
		t.Fatalf("owners %v", was)
	}
	s.nodes[0].paused = 1 << 30
	s.run(100, lease(1))
	if o := s.owners(a[0]); len(o) != 1 || o[0] != 1 {
		t.Errorf("the survivor has the Lease, and owners are %v", o)
	}
	s.run(300, nil)
	if o := s.owners(a[0]); len(o) != 0 {
		t.Errorf("the Lease is over, and owners are %v", o)
	}
}

// TestLeaseRefused: a node that hears that another node has the Lease gives up at once what it holds by the Lease's
// vote. What both nodes granted it keeps.
func TestLeaseRefused(t *testing.T) {
	s := newSim(t, 2, 1)
	s.voters = Voters{Epoch: 2, Names: []string{"node-1", "node-2", LeaseVoter}}
	a := addrs(2)
	for i, n := range s.nodes {
		n.mine = a
		s.restart(i)
	}
	holds := func(when string, want ...int) {
		t.Helper()
		for _, addr := range a {
			if o := s.owners(addr); !slices.Equal(o, want) || s.nodes[1].m.Granted(addr) != (len(want) > 0) {
				t.Errorf("%s: owners of %v are %v, want %v", when, addr, o, want)
			}
		}
	}
	s.nodes[0].mine = nil
	s.nodes[1].m.SetLease(time.Hour)
	s.run(100, nil)
	holds("both nodes run", 1)
	s.nodes[1].m.SetLease(0)
	s.run(100, func() { holds("the Lease is the other's, and both nodes run", 1) })
	s.nodes[1].m.SetLease(time.Hour)
	s.nodes[0].paused = 1 << 30
	s.run(100, nil)
	holds("the other node is gone", 1)
	s.nodes[1].m.SetLease(0)
	s.apply(1)
	s.run(1, nil)
	holds("the other node is gone and has the Lease")
}

// randomFault loses, delays and doubles packets.
func randomFault(lose, late, double float64) func(*sim, simPacket) []int {
	return func(s *sim, _ simPacket) (copies []int) {
		for {
			if s.rng.Float64() < lose {
				return copies
			}
			delay := 0
			if s.rng.Float64() < late {
				delay = s.rng.IntN(120)
			}
			if copies = append(copies, delay); s.rng.Float64() >= double {
				return copies
			}
		}
	}
}

// runRandom is a run with every kind of fault, which depends on the seed only. It returns the number of ticks in which
// the first address had an owner.
func runRandom(t testing.TB, seed uint64, ticks int) (owned int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newSim(t, 2+rng.IntN(4), seed)
	if seed%3 == 0 { // a cluster's first start
		s.voters = Voters{}
		for i := range s.nodes {
			s.restart(i)
		}
	}
	for _, n := range s.nodes {
		n.rate = 0.99 + 0.02*rng.Float64()
	}
	all := addrs(6)
	var former []simPacket // recorded on the wire, to be sent again
	calm := s.fault
	s.run(ticks, func() {
		if len(s.owners(all[0])) > 0 {
			owned++
		}
		i := rng.IntN(len(s.nodes))
		n := s.nodes[i]
		switch rng.IntN(60) {
		case 0:
			s.restart(i)
		case 1:
			n.paused = rng.IntN(150)
		case 2:
			s.fault = randomFault(0.2*rng.Float64(), 0.1*rng.Float64(), 0.1*rng.Float64())
		case 3:
			s.fault = calm
		case 4, 5, 6, 7: // a node wants other addresses
			n.mine = nil
			for _, a := range all {
				if rng.IntN(2) == 0 {
					n.mine = append(n.mine, a)
				}
			}
		case 8: // a one-way partition
			from := rng.IntN(len(s.nodes))
			s.fault = func(_ *sim, p simPacket) []int {
				if p.from == from && p.to == i {
					return nil
				}
				return []int{0}
			}
		case 9:
			former = append(former, s.air...)
			for _, p := range former[max(0, len(former)-20):] {
				p.due = s.step + 1
				s.air = append(s.air, p)
			}
		case 10, 11, 12, 13, 14, 15:
			if n.paused == 0 {
				n.m.SetVoters(s.voters)
			}
		case 16, 17, 18, 19:
			s.elect(i, rng)
			s.first(i, 30)
		}
	})
	if s.broken != "" {
		t.Fatalf("seed %d: %s", seed, s.broken)
	}
	return owned
}

// elect lets node i write the next list of voters for a cluster that has some of the nodes.
func (s *sim) elect(i int, rng *rand.Rand) {
	m := s.nodes[i].m
	if s.nodes[i].paused > 0 || m.Voters().Epoch != s.voters.Epoch || !m.Adopted() {
		return
	}
	names := s.names()
	some := names[:1+rng.IntN(len(names))]
	if next, ok := m.Voters().Next(m.Roll(some, time.Second)); ok {
		s.voters = next
	}
}

// TestRandom: never two owners, whatever happens; and there are owners.
func TestRandom(t *testing.T) {
	seeds := uint64(150)
	if os.Getenv("FAIRWAY_FAULTS") == "all" {
		seeds = 20000
	}
	owned := 0
	for seed := range seeds {
		owned += runRandom(t, seed, 1000)
	}
	// A voter with the list before granted a free address for a request that it had refused. The owner counted from
	// that request, the voter from the request before.
	runRandom(t, 8724, 1000)
	if share := float64(owned) / float64(seeds*1000); share < 0.2 {
		t.Errorf("an address has an owner in %.2f of the time: nothing was tested", share)
	}
}

func FuzzElection(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { runRandom(t, seed, 500) })
}

func FuzzOpen(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.seal(simKey))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := open(simKey, b); err == nil {
			again, err := open(simKey, m.seal(simKey))
			if err != nil || again.header != m.header {
				t.Errorf("%+v is read again as %+v, %v", m, again, err)
			}
		}
		// The fuzzer also reaches the parser behind the authentication.
		if len(b) > 0 {
			b = append([]byte{protocolVersion}, b...)
			_, _ = open(simKey, append(b, tag(simKey, b)...))
		}
	})
}

func samples() []message {
	var many []uint16
	for i := range uint16(3000) {
		many = append(many, 3*i)
	}
	return []message{
		{header: header{kind: kindHello, from: 1, to: 2, nonce: 3, echo: 4, counter: 5}},
		{header: header{kind: kindHeartbeat}, heartbeat: heartbeat{seq: 1, epoch: 2, version: 3, excluded: true}},
		{header: header{kind: kindHeartbeat}, heartbeat: heartbeat{seq: 1, epoch: 2, version: 3, excluded: true, leaving: true}},
		{header: header{kind: kindClaims}, claims: claims{version: 1, part: 1, parts: 2, addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}},
		{header: header{kind: kindGrant}, grant: grant{seq: 1, epoch: 2, version: 3, refused: []uint16{1, 5}, contested: many, out: []uint32{7}}},
		{header: header{kind: kindGrant}, grant: grant{seq: 1, epoch: 2, version: 3, out: []uint32{7, 9}, dead: []uint32{9}}},
	}
}
