package layer2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestDrain drains the owner of an address and takes it back. Two nodes never have the address, and all requests of a
// client get an answer.
func TestDrain(t *testing.T) {
	l := newLAN(t, 3)
	best := l.best(vips[0])
	l.until(vips[0], best)
	asked := l.net.Outside.KeepAsking(netip.AddrPortFrom(vips[0], 8080))
	for range 2 {
		l.world.Nodes[best].Excluded = "it is drained"
		l.tell(0, 1, 2)
		l.owner(vips[0], best)
		time.Sleep(2 * testnet.Interleaved) // the tape takes a shorter ownership for two owners
		l.world.Nodes[best].Excluded = ""
		l.tell(0, 1, 2)
		l.until(vips[0], best)
		time.Sleep(2 * testnet.Interleaved)
	}
	n, failed := asked()
	if t.Logf("%d requests, %d changes of owner", n, l.tape.Check(t)); n == 0 || len(failed) > 0 {
		t.Errorf("of %d requests %d have no answer: %v", n, len(failed), failed)
	}
}
