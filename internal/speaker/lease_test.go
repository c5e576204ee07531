package speaker

import (
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/election"
)

// TestTwoNodes: of two nodes one dies. Without the Lease, as when the API server is away, nobody has its
// address, since the other one cannot know; with it the other one has it. Never two have it.
func TestTwoNodes(t *testing.T) {
	l := newLAN(t, 2)
	l.world.Voters = election.Voters{Epoch: 2, Names: append([]string{election.LeaseVoter}, l.world.Voters.Names...)}
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
