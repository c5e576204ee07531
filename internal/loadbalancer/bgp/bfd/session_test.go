package bfd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

var routerConfig = Config{Peer: netip.MustParseAddr("192.0.2.1"), Receive: 300 * time.Millisecond, Transmit: 200 * time.Millisecond, Multiplier: 3}

// TestStates tries each packet in each state, as in RFC 5880, 6.8.6.
func TestStates(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ have, hear, want State }{
		{Down, AdminDown, Down}, {Down, Down, Init}, {Down, Init, Up}, {Down, Up, Down},
		{Init, AdminDown, Down}, {Init, Down, Init}, {Init, Init, Up}, {Init, Up, Up},
		{Up, AdminDown, Down}, {Up, Down, Down}, {Up, Init, Up}, {Up, Up, Up},
		{AdminDown, Down, AdminDown}, {AdminDown, Init, AdminDown}, {AdminDown, Up, AdminDown},
	} {
		s := newSession(routerConfig, 1, now, rand.Float64)
		s.state = c.have
		s.receive(now, packet{state: c.hear, my: 2, your: 1, multiplier: 3, transmit: time.Second, receive: time.Second})
		if s.state != c.want {
			t.Errorf("%v hears %v and is %v, want %v", c.have, c.hear, s.state, c.want)
		}
		if down := c.have == Up && c.want == Down; len(s.changes) > 0 && s.changes[0].Admin != (c.hear == AdminDown) || down && len(s.changes) != 1 {
			t.Errorf("%v hears %v: changes %v", c.have, c.hear, s.changes)
		}
	}
}

// A link joins two sessions and carries packets in no time. A cut direction loses them.
type link struct {
	a, b *session
	now  time.Time
	cut  [2]bool // from a, from b
	sent [2]int
}

func newLink(a, b Config) *link {
	now := time.Now()
	return &link{a: newSession(a, 1, now, rand.Float64), b: newSession(b, 2, now, rand.Float64), now: now}
}

// run lets time pass.
func (l *link) run(d time.Duration) (changes []Change) {
	for end := l.now.Add(d); ; {
		l.now = earlier(l.a.due(), l.b.due())
		if l.now.After(end) {
			l.now = end
			break
		}
		l.carry(0, l.b, l.a, l.a.wake(l.now))
		l.carry(1, l.a, l.b, l.b.wake(l.now))
	}
	changes, l.a.changes, l.b.changes = append(l.a.changes, l.b.changes...), nil, nil
	return changes
}

func (l *link) carry(from int, to, back *session, all []packet) {
	for _, p := range all {
		l.sent[from]++
		q, err := parse(p.marshal())
		if err != nil {
			panic(err)
		}
		if !l.cut[from] {
			l.carry(1-from, back, to, to.receive(l.now, q))
		}
	}
}

// TestDetection: both ends are up within two seconds and send at the interval of the slower end. They are down after
// as many lost packets as the multiplier allows, whichever direction is cut.
func TestDetection(t *testing.T) {
	other := Config{Receive: 100 * time.Millisecond, Transmit: 50 * time.Millisecond, Multiplier: 5}
	for name, cut := range map[string][2]bool{"both": {true, true}, "from us": {true, false}, "to us": {false, true}} {
		l := newLink(routerConfig, other)
		if n := len(l.run(2 * time.Second)); n != 2 || l.a.state != Up || l.b.state != Up {
			t.Fatalf("%v and %v after two seconds", l.a.state, l.b.state)
		}
		if l.a.detection != 5*300*time.Millisecond || l.b.detection != 3*200*time.Millisecond {
			t.Errorf("detection after %v and %v", l.a.detection, l.b.detection)
		}
		l.sent = [2]int{}
		if n := len(l.run(60 * time.Second)); n != 0 {
			t.Errorf("%d changes in peace", n)
		}
		if a, b := l.sent[0], l.sent[1]; a < 300 || a > 405 || b < 200 || b > 270 { // jitter makes each interval shorter by up to a quarter
			t.Errorf("%d and %d packets in a minute", a, b)
		}
		l.cut = cut
		if n := len(l.run(1800 * time.Millisecond)); n != 2 || l.a.state == Up || l.b.state == Up {
			t.Errorf("cut %s: %v and %v, %d changes", name, l.a.state, l.b.state, n)
		}
		l.cut, l.sent = [2]bool{}, [2]int{}
		if l.run(3 * time.Second); l.a.state != Up || l.b.state != Up {
			t.Errorf("cut %s, and healed: %v and %v", name, l.a.state, l.b.state)
		}
	}
}

// TestReconfigured: intervals become longer and shorter while the session is up, and no end goes down, also if the
// first packets with the change are lost. Detection uses the new intervals afterwards.
func TestReconfigured(t *testing.T) {
	slower := Config{Peer: routerConfig.Peer, Receive: 3 * time.Second, Transmit: 5 * time.Second, Multiplier: 4}
	faster := Config{Peer: routerConfig.Peer, Receive: 50 * time.Millisecond, Transmit: 20 * time.Millisecond, Multiplier: 3}
	l := newLink(routerConfig, Config{Receive: 100 * time.Millisecond, Transmit: 50 * time.Millisecond, Multiplier: 5})
	l.run(2 * time.Second)
	for _, c := range []struct {
		Config
		lost, ours, theirs time.Duration // so long packets of ours, and detection
	}{
		{slower, 120 * time.Millisecond, 5 * 3 * time.Second, 4 * 5 * time.Second},
		{faster, 4 * time.Second, 5 * 50 * time.Millisecond, 3 * 100 * time.Millisecond},
		{slower, 120 * time.Millisecond, 5 * 3 * time.Second, 4 * 5 * time.Second},
	} {
		l.a.reconfigure(l.now, c.Config)
		l.cut[0] = true
		n := len(l.run(c.lost))
		if l.cut[0] = false; n+len(l.run(2*time.Minute)) != 0 || l.a.state != Up || l.b.state != Up {
			t.Fatalf("%v and %v with %v", l.a.state, l.b.state, c.Config)
		}
		if l.a.detection != c.ours || l.b.detection != c.theirs {
			t.Errorf("with %v detection after %v and %v, want %v and %v", c.Config, l.a.detection, l.b.detection, c.ours, c.theirs)
		}
	}
	l.cut = [2]bool{true, true}
	if n := len(l.run(26 * time.Second)); n != 2 {
		t.Errorf("cut: %d changes, %v and %v", n, l.a.state, l.b.state)
	}
	l.a.reconfigure(l.now, routerConfig)
	l.cut = [2]bool{}
	if l.run(3 * time.Second); l.a.state != Up || l.a.detection != 5*300*time.Millisecond || l.b.detection != 3*200*time.Millisecond {
		t.Errorf("changed while it was down: %v, detection after %v and %v", l.a.state, l.a.detection, l.b.detection)
	}
}

// TestSilence: a passive session is silent before the router speaks, a session that is down speaks slowly, and no
// session speaks to a router that wants no packets.
func TestSilence(t *testing.T) {
	passive := routerConfig
	passive.Passive = true
	l := newLink(passive, routerConfig)
	l.cut[1] = true
	l.run(10 * time.Second)
	if l.sent[0] != 0 || l.sent[1] < 10 || l.sent[1] > 14 {
		t.Errorf("%d packets of the passive end and %d of the other in 10 s", l.sent[0], l.sent[1])
	}
	l.cut[1] = false
	if l.run(3 * time.Second); l.a.state != Up {
		t.Errorf("the passive end is %v", l.a.state)
	}
	l.a.receive(l.now, packet{state: Up, my: 2, your: 1, multiplier: 3, transmit: time.Second})
	if l.a.speaks() {
		t.Error("it speaks to one who wants no packets")
	}
	l.a.receive(l.now, packet{state: Up, my: 2, your: 1, multiplier: 3, transmit: time.Second, receive: time.Second, demand: true, final: true})
	if l.a.speaks() {
		t.Error("it speaks in demand mode")
	}
	if end := l.a.end(); end.state != AdminDown || end.diag != diagAdmin {
		t.Errorf("it ends with %v", end)
	}
}

// TestLoss: a session stays up unless three packets in a row are lost.
func TestLoss(t *testing.T) {
	l := newLink(routerConfig, routerConfig)
	l.run(3 * time.Second)
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		l.cut = [2]bool{random.IntN(2) == 0, random.IntN(2) == 0}
		n := l.run(200 * time.Millisecond)
		l.cut = [2]bool{}
		if n = append(n, l.run(500*time.Millisecond)...); len(n) > 0 {
			t.Fatalf("%v", n)
		}
	}
}

// FuzzParse: no malformed packet reaches a session, and a well-formed packet is read as it was written.
func FuzzParse(f *testing.F) {
	f.Add(packet{state: Up, diag: diagExpired, poll: true, multiplier: 3, my: 1, your: 2, transmit: time.Second, receive: time.Second}.marshal())
	f.Add([]byte{0x20, 0x40, 3, 24})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		again, err := parse(p.marshal())
		if err != nil || again.my != p.my || again.your != p.your || again.state != p.state || again.transmit != p.transmit || again.receive != p.receive || again.poll != p.poll {
			t.Errorf("%x is %+v, then %+v, %v", b, p, again, err)
		}
		s := newSession(routerConfig, 1, time.Now(), rand.Float64)
		for _, answer := range append(s.receive(time.Now(), p), s.wake(time.Now())...) {
			if _, err := parse(answer.marshal()); err != nil && answer.your != 0 {
				t.Errorf("%x is answered by a packet that is malformed: %+v", b, answer)
			}
		}
	})
}
