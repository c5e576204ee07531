package election

import (
	"testing"
	"time"
)

// BenchmarkTakeover has a cluster of 100 speakers with 10,000 addresses, one of which dies. It reports the time until
// other nodes have all its addresses, in the cluster's time, and the sent messages.
func BenchmarkTakeover(b *testing.B) {
	for b.Loop() {
		s := newSim(b, 100, 1)
		all := addrs(10000)
		for j, a := range all {
			n := s.nodes[j%100]
			n.mine = append(n.mine, a)
		}
		s.run(150, nil)
		for j, a := range all {
			if o := s.owners(a); len(o) != 1 || o[0] != j%100 {
				b.Fatalf("%v has the owners %v, want %d", a, o, j%100)
			}
		}
		sent, bytes := s.sent, s.bytes
		s.run(100, nil)
		b.ReportMetric(float64(s.sent-sent), "messages/s")
		b.ReportMetric(float64(s.bytes-bytes), "bytes/s")
		const dead = 3 // a voter
		lost := s.nodes[dead].mine
		s.nodes[dead].paused = 1 << 30
		died := s.step
		sent = s.sent
		given := false
		for took := 0; took == 0; {
			s.run(1, nil)
			out, ok := s.nodes[50].m.Out()
			if !given && ok && out[s.nodes[dead].name] { // all nodes see the same within a beat
				given = true
				for j, a := range lost {
					n := s.nodes[(dead+1+j%99)%100]
					n.mine = append(n.mine, a)
				}
			}
			took = 1
			for _, a := range lost {
				if o := s.owners(a); len(o) != 1 || o[0] == dead {
					took = 0
					break
				}
			}
			if given && s.step-died > 1000 {
				b.Fatal("nobody takes over")
			}
		}
		b.ReportMetric(float64((time.Duration(s.step-died) * tick).Milliseconds()), "ms-to-move")
		b.ReportMetric(float64(s.sent-sent), "messages-to-move")
		b.ReportMetric(0, "ns/op")
		if s.broken != "" {
			b.Fatal(s.broken)
		}
	}
}
