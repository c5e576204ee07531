package bgp

import (
	"syscall"
	"testing"
)

// end asks node i's speaker to end, and waits until it has.
func (r *rack) end(i int) {
	r.t.Helper()
	must(r.t, r.nodes[i].cmd.Process.Signal(syscall.SIGTERM))
	must(r.t, r.nodes[i].cmd.Wait())
}

// TestSession: a client behind a router reaches the addresses of both families through the
// routes that a node announces. A clean end takes them back, and the next start brings them.
func TestSession(t *testing.T) {
	r := newRack(t, 1)
	r.router("")
	r.start(0)
	for range 2 {
		r.until(vip4, "node-1")
		r.until(vip6, "node-1")
		r.answered(vip4)
		r.answered(vip6)
		r.end(0)
		r.until(vip4)
		r.until(vip6)
		r.start(0)
	}
}
