package bfd

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is the time that a busy machine may need for anything.
const patience = 60 * time.Second

// A router is the other end in a namespace. The test writes its packets by hand, so that it can send what no router
// would send.
type router struct {
	t    *testing.T
	in   int
	out  int
	last packet
}

func open(t *testing.T, ns *testnet.Namespace, c Config) *router {
	t.Helper()
	r := &router{t: t}
	err := ns.Do(func() (err error) {
		if r.in, err = c.socketKind().listen(); err == nil {
			r.out, err = dial(c)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(r.in); _ = unix.Close(r.out) })
	return r
}

// hear waits for a packet with that state.
func (r *router) hear(want State) {
	r.t.Helper()
	buf, oob := make([]byte, 512), make([]byte, 128)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		d, ok := read(r.in, buf, oob)
		if !ok {
			continue
		}
		p, err := parse(d.data)
		if err != nil || d.ttl != hopLimit {
			r.t.Fatalf("a packet with TTL %d, %v", d.ttl, err)
		}
		if r.last = p; p.state == want {
			return
		}
	}
	r.t.Fatalf("no packet says %v; the last one was %v", want, r.last)
}

// tryHear reads a packet, if one has arrived.
func (r *router) tryHear() bool {
	r.t.Helper()
	d, ok := read(r.in, make([]byte, 512), make([]byte, 128))
	if ok {
		r.last, _ = parse(d.data)
	}
	return ok
}

func (r *router) say(s State, your uint32) {
	r.t.Helper()
	r.send(packet{state: s, my: 77, your: your, multiplier: 200, transmit: 300 * time.Millisecond, receive: 20 * time.Millisecond})
}

func (r *router) send(p packet) {
	r.t.Helper()
	if _, err := unix.Write(r.out, p.marshal()); err != nil {
		r.t.Fatal(err)
	}
}

// watch runs a Watch on a host until the test ends.
func watch(t *testing.T, h *testnet.Host) (w *Watch, changes chan Change) {
	t.Helper()
	changes = make(chan Change, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	err := h.Do(func() (err error) {
		w, err = New(func(c Change) { changes <- c })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- h.Do(func() error { return w.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.Set(nil) // after Run it has no effect
	})
	return w, changes
}

// TestWatch: a Watch comes up with a router in another namespace, in both families and over several hops. Packets that
// routers have passed on do not count. A session that is not wanted any more says so.
func TestWatch(t *testing.T) {
	n := testnet.New(t)
	h := n.Node("node-1")
	for name, c := range map[string]Config{
		"IPv4":         {Peer: netip.MustParseAddr("172.18.0.1"), Source: h.Addr(true)},
		"IPv6":         {Peer: netip.MustParseAddr("fd00:172:18::1"), Source: h.Addr(false)},
		"several hops": {Peer: netip.MustParseAddr("172.18.0.1"), Source: h.Addr(true), MultiHop: true, MinTTL: 250},
	} {
		t.Run(name, func(t *testing.T) {
			c.Receive, c.Transmit, c.Multiplier = 300*time.Millisecond, 20*time.Millisecond, 3
			r := open(t, n.Fabric, Config{Peer: c.Source, Source: c.Peer, MultiHop: c.MultiHop})
			w, changes := watch(t, h)
			w.Set([]Config{c})
			r.hear(Down)
			ttl := func(v int) {
				var err error
				if c.Peer.Is4() {
					err = unix.SetsockoptInt(r.out, unix.SOL_IP, unix.IP_TTL, v)
				} else {
					err = unix.SetsockoptInt(r.out, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, v)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			ttl(249)
			r.say(Init, r.last.my)
			ttl(hopLimit)
			r.say(Down, 0)
			r.hear(Init)
			if s, ok := w.Status(c); !ok || s.State != Init || s.Received != 1 {
				t.Errorf("%+v, %v: a packet that routers passed on counts", s, ok)
			}
			r.say(Up, r.last.my)
			r.hear(Up)
			if x := <-changes; !x.Up {
				t.Errorf("%+v", x)
			}
			r.say(AdminDown, r.last.my)
			if x := <-changes; x.Up || !x.Admin {
				t.Errorf("%+v", x)
			}
			r.say(Init, r.last.my)
			<-changes
			w.Set(nil)
			r.hear(AdminDown)
			if _, ok := w.Status(c); ok {
				t.Error("there is still a session")
			}
		})
	}
}

// TestForged: packets without this node's number, which anybody on the router's network can send, do not end a session
// that is up, and do not keep a session from coming up. A router that has restarted does not know the number. It gets a
// new session after its old one has been silent.
func TestForged(t *testing.T) {
	n := testnet.New(t)
	h := n.Node("node-1")
	c := Config{Peer: netip.MustParseAddr("172.18.0.1"), Source: h.Addr(true), Receive: 300 * time.Millisecond, Transmit: 20 * time.Millisecond, Multiplier: 3}
	r := open(t, n.Fabric, Config{Peer: c.Source, Source: c.Peer})
	w, changes := watch(t, h)
	w.Set([]Config{c})
	r.hear(Down)
	r.send(packet{state: Down, my: 66, multiplier: 255, transmit: time.Hour, receive: time.Hour})
	r.say(Down, 0)
	for r.hear(Init); r.last.your != 77; r.hear(Init) {
	}
	own := r.last.my
	r.say(Up, own)
	if x := <-changes; !x.Up {
		t.Fatalf("%+v", x)
	}
	r.send(packet{state: Down, my: 66, multiplier: 255, transmit: time.Hour, receive: time.Hour})
	r.say(AdminDown, 0)
	r.send(packet{state: Up, my: 77, your: own, multiplier: 4, transmit: 100 * time.Millisecond, receive: 20 * time.Millisecond})
	for r.hear(Up); r.last.your != 77; r.hear(Up) {
	}
	r.last = packet{}
	for end := time.Now().Add(patience); r.last.my != own || r.last.state != Down; time.Sleep(time.Millisecond) { // the router restarts
		if r.say(Down, 0); !r.tryHear() && time.Now().After(end) {
			t.Fatal("the session of a router that has restarted does not end")
		}
	}
	if x := <-changes; x.Up || x.Admin || !strings.Contains(x.Reason, "silent") {
		t.Errorf("the session ended by %+v, want the router's silence", x)
	}
	r.say(Down, 0)
	r.hear(Init)
	if s, _ := w.Status(c); s.Ups != 1 || s.Downs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestPortTaken: if another program has the port, the status says so.
func TestPortTaken(t *testing.T) {
	n := testnet.New(t)
	c := Config{Peer: netip.MustParseAddr("172.18.0.11"), Receive: time.Second, Transmit: time.Second, Multiplier: 3}
	_ = open(t, n.Fabric, c)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	problems := make(chan bool, 10)
	w, err := New(func(c Change) { problems <- c.Problem })
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- n.Fabric.Do(func() error { return w.Run(ctx) }) }()
	defer func() { cancel(); <-done }()
	w.Set([]Config{c})
	if !<-problems {
		t.Error("it is up")
	}
	if s, _ := w.Status(c); s.Problem == "" {
		t.Error("nothing says that the port is taken")
	}
}
