package layer2

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// TestTwoNodes: of two nodes one dies. Without the Lease, as when the API server is away, nobody has its
// address, since the other one cannot know; with it the other one has it. Never two have it.
func TestTwoNodes(t *testing.T) {
	l := newLAN(t, 2)
	l.leaseVotes()
	l.tell(0, 1)
	best := l.best(vips[0])
	other := 1 - best
	l.until(vips[0], best)
	l.kill(best)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		// The one that was killed is mute when its grant is over; a neighbour entry may still lead there.
		if l.ask(vips[0]) == other {
			t.Fatal("a node has the address without a majority")
		}
	}
	l.world.Holder = l.nodes[other].Name
	l.tell(other)
	l.until(vips[0], other)
	l.start(best)
	l.until(vips[0], best)
	t.Log(l.tape.Check(t), "changes of owner")
}

// TestMuteOfTwo: of two nodes the one with the Lease's vote is not heard any more (with FAIRWAY_FAULTS=all it also hears nobody),
// and reaches the API server by another network: no router answers it, so that it leaves the vote to the other one, and with it the address.
func TestMuteOfTwo(t *testing.T) {
	faults := []string{"ingress", "egress"}
	if os.Getenv("FAIRWAY_FAULTS") != "all" {
		faults = faults[:1]
	}
	for _, hook := range faults {
		t.Run(hook, func(t *testing.T) {
			l, best := newPair(t)
			l.drop(best, hook)
			began := time.Now()
			l.until(vips[0], 1-best)
			t.Logf("the other node has the address after %v", time.Since(began).Round(time.Millisecond))
			l.pass(best)
			l.until(vips[0], best)
			t.Log(l.tape.Check(t), "changes of owner")
		})
	}
}

// TestAlone: a node that does not hear the other one leaves the vote when no router answers it, for long enough that the other
// one has it, and less and less often when that one does not want it.
func TestAlone(t *testing.T) {
	var a soleVoter
	start := time.Now()
	at, answered := start, time.Time{}
	check := func(after time.Duration, silent, want bool) {
		t.Helper()
		at = at.Add(after)
		if got := a.yields(at, silent, answered); got != want {
			t.Errorf("after %v: it leaves the vote: %v, want %v", at.Sub(start), got, want)
		}
	}
	check(0, false, false)
	check(time.Minute, true, false) // the other one is silent from now on
	check(2*time.Second, true, false)
	check(time.Second, true, true)
	check(7*time.Second, true, true)
	check(time.Second, true, false) // nobody else wanted it
	check(51*time.Second, true, false)
	check(time.Second, true, true)
	check(8*time.Second, true, false)
	check(111*time.Second, true, false)
	check(time.Second, true, true)
	answered = at
	check(time.Second, true, false) // a router answers
	check(time.Hour, false, false)
	check(time.Second, true, false)
	check(3*time.Second, true, true)
	for range 100 {
		a.yields(at, true, answered)
		at = at.Add(yieldMost)
	}
	if a.pause != yieldMost {
		t.Errorf("the vote is left every %v", a.pause)
	}
}

// leaseVotes adds the Lease's vote to those of the nodes.
func (l *lan) leaseVotes() {
	l.world.Voters = election.Voters{Epoch: 2, Names: append([]string{election.LeaseVoter}, l.world.Voters.Names...)}
}

// newPair returns two nodes, of which the best has the Lease's vote, in a file, and the address.
func newPair(t *testing.T) (l *lan, best int) {
	t.Helper()
	l = newLAN(t, 2)
	l.leaseVotes()
	l.world.Lease = filepath.Join(t.TempDir(), "lease")
	best = l.best(vips[0])
	l.tell(best)
	l.until(vips[0], best)
	l.hasLease(l.nodes[best].Name)
	l.tell(1 - best)
	return l, best
}

// hasLease waits until a node has the Lease's vote, as its file says.
func (l *lan) hasLease(node string) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var lease struct{ Holder string }
		text, err := os.ReadFile(l.world.Lease)
		if err == nil && json.Unmarshal(text, &lease) == nil && lease.Holder == node {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("the Lease is %s, want it to be %s's", text, node)
		}
	}
}
