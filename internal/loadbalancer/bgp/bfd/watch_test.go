package bfd

import (
	"context"
	"net/netip"
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

func (r *router) say(s State, your uint32) {
	r.t.Helper()
	p := packet{state: s, my: 77, your: your, multiplier: 200, transmit: 300 * time.Millisecond, receive: 20 * time.Millisecond}
	if _, err := unix.Write(r.out, p.marshal()); err != nil {
		r.t.Fatal(err)
	}
}

// TestWatch: a Watch comes up with a router in another namespace, in both families and over several hops. Packets
// that routers have passed on do not count. A session that is not wanted any more says so.
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
			changes := make(chan Change, 10)
			var w *Watch
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			err := h.Do(func() (err error) {
				w, err = New(func(c Change) { changes <- c })
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			go func() { done <- h.Do(func() error { return w.Run(ctx) }) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				w.Set(nil) // after Run it has no effect
			}()
			w.Set([]Config{c})
			r.hear(Down)
			ttl := func(v int) {
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
