package election

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// A simFault is one fault, from a tick on.
type simFault struct {
	at   int
	name string
	node int // for a fault of a node
	from int // for one of the way between two nodes; -1: not
	to   int
	do   func(*sim, simFault)
	way  func(age int, p simPacket) []int // what becomes of packets, so many ticks after at
}

// faultsOf lists every fault of n nodes at each of the ticks.
func faultsOf(n int, ticks []int) (all []simFault) {
	for _, at := range ticks {
		for i := range n {
			for _, length := range []int{30, 70} {
				all = append(all, simFault{at: at, name: fmt.Sprintf("pause %d", length), node: i, from: -1, do: func(s *sim, f simFault) { s.nodes[f.node].paused = length }})
			}
			all = append(all, simFault{at: at, name: "restart", node: i, from: -1, do: func(s *sim, f simFault) { s.restart(f.node) }})
			for j := range n {
				if i == j {
					continue
				}
				way := func(name string, do func(age int, p simPacket) []int) {
					all = append(all, simFault{at: at, name: name, from: i, to: j, way: do})
				}
				way("lose", func(age int, _ simPacket) []int { return during(age, 70, nil) })
				way("late by 300 ms", func(age int, _ simPacket) []int { return during(age, 20, []int{30}) })
				way("late by 600 ms", func(age int, _ simPacket) []int { return during(age, 20, []int{60}) })
				way("doubled", func(age int, _ simPacket) []int { return during(age, 20, []int{0, 1, 55}) })
			}
		}
	}
	return all
}

// during returns the copies of a packet that arrive while a fault lasts.
func during(age, length int, copies []int) []int {
	if age >= 0 && age < length {
		return copies
	}
	return []int{0}
}

// faulty applies these faults to the packets of a sim.
func faulty(faults []simFault) func(*sim, simPacket) []int {
	return func(s *sim, p simPacket) []int {
		for _, f := range faults {
			if f.way == nil || f.from != p.from || f.to != p.to {
				continue
			}
			if copies := f.way(s.step-f.at, p); len(copies) != 1 || copies[0] != 0 {
				return copies
			}
		}
		return []int{0}
	}
}

// runFaults runs n nodes with some faults. The nodes want addresses as in a healthy cluster.
func runFaults(t testing.TB, n int, grant time.Duration, faults ...simFault) string {
	s := newSim(t, n, 1)
	s.grant = grant
	s.fault = faulty(faults)
	all := addrs(2)
	s.run(lastFault+120, func() {
		s.prefer(all)
		for _, f := range faults {
			if f.do != nil && s.step == f.at {
				f.do(s, f)
			}
		}
	})
	if s.broken != "" {
		return fmt.Sprintf("%d nodes, %s: %s", n, describe(faults), s.broken)
	}
	return ""
}

func describe(faults []simFault) (text string) {
	for _, f := range faults {
		if text += fmt.Sprintf("%s at %d", f.name, f.at); f.from >= 0 {
			text += fmt.Sprintf(" from %d to %d; ", f.from, f.to)
		} else {
			text += fmt.Sprintf(" of %d; ", f.node)
		}
	}
	return text
}

// firstFault is the tick at which a new cluster has come to rest.
const firstFault, lastFault = 90, 160

// TestExhaustive tries every fault of three nodes, and every pair of faults of two, at moments spread over a beat and
// a grant: never two owners. FAIRWAY_FAULTS=all adds every pair of three nodes, and more moments.
func TestExhaustive(t *testing.T) {
	singles, pairs := []int{90, 93, 96, 99, 102, 105}, []int{90, 117}
	if os.Getenv("FAIRWAY_FAULTS") == "all" {
		singles, pairs = nil, nil
		for at := firstFault; at < lastFault; at++ {
			if singles = append(singles, at); at%8 == 0 {
				pairs = append(pairs, at)
			}
		}
	}
	runs := 0
	try := func(n int, faults ...simFault) {
		runs++
		if broken := runFaults(t, n, DefaultTiming.Grant, faults...); broken != "" {
			t.Fatal(broken)
		}
	}
	for _, f := range faultsOf(3, singles) {
		try(3, f)
	}
	for _, n := range []int{2, 3} {
		if n == 3 && len(pairs) < 3 {
			break
		}
		all := faultsOf(n, pairs)
		for i, f := range all {
			for _, g := range all[i:] {
				try(n, f, g)
			}
		}
	}
	t.Log(runs, "runs")
}

// runFirst runs n nodes that start without a list of voters, with some faults. The first of two nodes has the Lease.
// owned is the number of ticks in which the first address has an owner.
func runFirst(t testing.TB, n, lag int, faults ...simFault) (broken string, owned int) {
	s := newSim(t, n, 1)
	s.voters, s.lag = Voters{}, lag
	for i := range s.nodes {
		s.restart(i)
	}
	s.fault = faulty(faults)
	all := addrs(2)
	s.run(300, func() {
		for i, node := range s.nodes {
			if s.first(i, 60+10*i); node.paused == 0 {
				node.m.SetVoters(s.known(i))
			}
		}
		s.nodes[0].m.SetLease(s.clock(0) + 2*time.Second)
		s.prefer(all)
		for _, f := range faults {
			if f.do != nil && s.step == f.at {
				f.do(s, f)
			}
		}
		if len(s.owners(all[0])) > 0 {
			owned++
		}
	})
	if s.broken != "" {
		broken = fmt.Sprintf("%d nodes, the first list after up to %d ticks, %s: %s", n, lag, describe(faults), s.broken)
	}
	return broken, owned
}

// TestFirst tries every fault of two and three nodes around the moment of the first list of voters, and every pair of
// faults of two: never two owners, and the first address has one. FAIRWAY_FAULTS=all adds five nodes.
func TestFirst(t *testing.T) {
	runs := 0
	try := func(n, lag int, faults ...simFault) {
		runs++
		broken, owned := runFirst(t, n, lag, faults...)
		if broken != "" {
			t.Fatal(broken)
		}
		if owned < 50 {
			t.Errorf("%d nodes, %s: the first address has an owner for %d of 300 ticks", n, describe(faults), owned)
		}
	}
	sizes := []int{2, 3}
	if os.Getenv("FAIRWAY_FAULTS") == "all" {
		sizes = append(sizes, 5)
	}
	for _, n := range sizes {
		for _, lag := range []int{1, 40} {
			try(n, lag)
			for _, f := range faultsOf(n, []int{45, 58, 61, 66, 80}) {
				try(n, lag, f)
			}
		}
	}
	all := faultsOf(2, []int{58, 66})
	for i, f := range all {
		for _, g := range all[i:] {
			try(2, 20, f, g)
		}
	}
	t.Log(runs, "runs")
}

// TestExhaustiveFinds: the same runs find two owners if the kernel mutes nodes too late.
func TestExhaustiveFinds(t *testing.T) {
	for _, f := range faultsOf(3, []int{90, 95}) {
		if runFaults(t, 3, 2*DefaultTiming.Grant, f) != "" {
			return
		}
	}
	t.Error("a fence that is wrong passes")
}
