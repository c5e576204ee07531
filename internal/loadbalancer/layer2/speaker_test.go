package layer2

import (
	"syscall"
	"testing"
	"time"
)

// TestFaults: three speakers on a bridge. Whatever happens to the owner of an address, another node has it soon, and
// two never have it on the wire.
func TestFaults(t *testing.T) {
	l := newLAN(t, 3)
	for _, a := range vips {
		best := l.best(a)
		l.until(a, best)
		l.kill(best)
		l.owner(a, best)
		l.start(best)
		l.until(a, best)
		l.signal(best, syscall.SIGSTOP)
		l.owner(a, best)
		l.signal(best, syscall.SIGCONT)
		l.until(a, best)
	}
	t.Log(l.tape.Check(t), "changes of owner,", l.tape.Frames(), "frames")
}

// TestSlowSource: a node keeps its address while it decides about a change, however long that takes.
func TestSlowSource(t *testing.T) {
	l := newLAN(t, 3)
	best := l.best(vips[0])
	l.until(vips[0], best)
	l.world.Slow = true
	l.tell(best)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		l.ask(vips[0]) // a loop that waits would lose its grant
	}
	l.until(vips[0], best)
	t.Log(l.tape.Check(t), "changes of owner")
}
