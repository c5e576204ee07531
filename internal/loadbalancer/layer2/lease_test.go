package layer2

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// TestTwoNodes: one of two nodes dies. Without the Lease, as when the API server is away, no node has its address,
// because the other one cannot know. With the Lease the other one has it. Never do two have it.
func TestTwoNodes(t *testing.T) {
	l := newLAN(t, 2)
	l.leaseVotes()
	l.tell(0, 1)
	best := l.best(vips[0])
	other := 1 - best
	l.until(vips[0], best)
	l.kill(best)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		// The dead node is mute after its grant, but a neighbour entry may still lead there.
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

// TestLeaseRefused: a node that announces by the Lease's vote hears that another node has the Lease. It is silent soon,
// however long its vote would last by its own clock, which stood still if its machine was paused.
func TestLeaseRefused(t *testing.T) {
	l := newLANOf(t, 2, t.TempDir())
	l.leaseVotes()
	best := l.best(vips[0])
	l.world.Holder, l.world.Lasts = l.nodes[best].Name, time.Hour
	l.tell(0, 1)
	l.kill(1 - best)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		l.until(vips[0], best)
	}
	l.world.Holder = l.nodes[1-best].Name
	l.tell(best)
	l.grants(best, fmt.Sprintf("no majority of the 3 voters grants it: the Lease's vote, %s are silent [do UDP packets of the speakers' port reach them?]", l.nodes[1-best].Name))
	t.Log(l.tape.Check(t), "changes of owner")
}

// leaseVotes adds the Lease to the voters.
func (l *lan) leaseVotes() {
	l.world.Voters = election.Voters{Epoch: 2, Names: append([]string{election.LeaseVoter}, l.world.Voters.Names...)}
}

// newPair returns two nodes with a Lease in a file. The best node has the Lease and the address.
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

// hasLease waits until the file names a node as the Lease's holder.
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
