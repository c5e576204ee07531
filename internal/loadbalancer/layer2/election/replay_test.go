package election

import (
	"testing"
	"time"
)

// TestReplayed: a machine that records messages of processes that have ended, and sends them again and again, does
// not part the members: the address always has an owner. Each message is refused. A hello answers it at most so often
// that the handshake loses no more than one round of heartbeats.
func TestReplayed(t *testing.T) {
	for _, again := range []int{0, 1, 10} { // ticks between two copies of a message
		s := newSim(t, 3, 1)
		a := addrs(1)
		s.nodes[0].mine = a
		var recorded []simPacket
		calm := s.fault
		s.fault = func(s *sim, p simPacket) []int {
			recorded = append(recorded, p)
			return []int{0}
		}
		s.run(100, nil)
		for i := range s.nodes { // so that no process has a nonce of the recorded messages
			s.restart(i)
			s.run(30, nil)
		}
		s.fault = calm
		s.run(200, nil)
		if o := s.owners(a[0]); len(o) != 1 {
			t.Fatalf("owners at first: %v", o)
		}
		sent, mute, from := s.sent, 0, s.step
		s.run(500, func() {
			if again > 0 && s.step%again == 0 {
				for i, p := range recorded {
					if i%7 == s.step/again%7 {
						p.due = s.step + 1
						s.air = append(s.air, p)
					}
				}
			}
			if len(s.owners(a[0])) == 0 {
				mute++
			}
		})
		took := time.Duration(s.step-from) * tick
		t.Logf("every %d ticks: %d messages in %v", again, s.sent-sent, took)
		if mute > 0 {
			t.Errorf("every %d ticks: the address had no owner for %v of %v", again, time.Duration(mute)*tick, took)
		}
	}
}
