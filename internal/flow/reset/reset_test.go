package reset

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestReset: a client of a pod that is gone reads a reset. The client's place, the address and the mechanism of
// translation do not matter. Connections to another pod continue.
func TestReset(t *testing.T) {
	for mechanism, legacy := range map[string]bool{"nftables": false, "iptables": true} {
		for name, is4 := range families {
			t.Run(mechanism+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				s.legacy = legacy
				f := s.family(is4)
				everywhere := []*testnet.Host{s.pod, s.farPod, s.node, s.far, s.Outside}
				s.lead(f, f.b)
				var stay, end []*testnet.Conn
				for _, h := range everywhere {
					stay = append(stay, s.dial(h, f.vip, "b"), s.dial(h, f.b, "b"))
				}
				if legacy {
					s.run(s.node, "", map[bool]string{true: "iptables-legacy", false: "ip6tables-legacy"}[is4], "-t", "nat", "-F")
				}
				s.lead(f, f.a)
				for _, h := range everywhere {
					end = append(end, s.dial(h, f.vip, "a"), s.dial(h, f.nodePort, "a"))
				}
				ends := s.find(f, f.a)
				if len(ends) != len(end) {
					t.Fatalf("%d connections found, want %d", len(ends), len(end))
				}
				s.silence(s.a)
				start := time.Now()
				s.start(nil).Reset(ends)
				for i, c := range end {
					if err := c.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
						t.Errorf("%s, connection %d: %v, want a reset", everywhere[i/2].Name, i, err)
					}
				}
				t.Logf("%d connections were reset within %v", len(end), time.Since(start))
				for i, c := range stay {
					if got := c.Ask(patience); got.By != "b" {
						t.Errorf("%s, connected to another pod: %v", everywhere[i/2].Name, got)
					}
				}
			})
		}
	}
}

// TestFirstChallengeLost: a client that misses the first challenge gets the second.
func TestFirstChallengeLost(t *testing.T) {
	s := newStage(t)
	f := s.family(true)
	s.lead(f, f.a)
	c := s.dial(s.pod, f.vip, "a")
	s.nft(s.pod, `table inet lossy {
		chain in { type filter hook prerouting priority -400; tcp flags & (syn | ack) == syn counter drop; }
	}`)
	s.silence(s.a)
	s.start(nil).Reset(s.find(f, f.a))
	if err := c.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%v, want a reset", err)
	}
	if !strings.Contains(s.run(s.pod, "", "nft", "list", "table", "inet", "lossy"), "packets 1 ") {
		t.Error("the first challenge was not sent")
	}
}

// TestLate: a client that misses both challenges gets a reset when it sends.
func TestLate(t *testing.T) {
	s := newStage(t)
	f := s.family(false)
	s.lead(f, f.a)
	c := s.dial(s.pod, f.vip, "a")
	s.nft(s.pod, `table inet lossy {
		chain in { type filter hook prerouting priority -400; tcp flags & rst == 0 counter drop; }
	}`)
	s.silence(s.a)
	r := s.start(func(p *periods) { p.linger = time.Hour })
	r.Reset(s.find(f, f.a))
	s.eventually("both challenges", func() bool {
		return strings.Contains(s.run(s.pod, "", "nft", "list", "table", "inet", "lossy"), "packets 2 ")
	})
	if got := c.Ask(patience); !errors.Is(got.Err, unix.ECONNRESET) {
		t.Errorf("%v, want a reset", got)
	}
}

// TestSamePort: a client may reuse its port. The new connection reaches the new endpoint as soon as the old
// connection's entry has ended.
func TestSamePort(t *testing.T) {
	s := newStage(t)
	f := s.family(true)
	s.lead(f, f.a)
	c := s.dial(s.Outside, f.vip, "a")
	s.silence(s.a)
	s.lead(f, f.b)
	s.start(func(p *periods) { p.lifetime = 10 * time.Second }).Reset(s.find(f, f.a))
	if err := c.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("%v, want a reset", err)
	}
	from := net.TCPAddrFromAddrPort(c.LocalAddr())
	c.Close()
	err := s.Outside.Do(func() error {
		d := net.Dialer{LocalAddr: from, Timeout: 2 * patience}
		conn, err := d.Dial("tcp", f.vip.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		line := make([]byte, 1)
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(line)
		if err == nil && line[0] != 'b' {
			err = fmt.Errorf("%q answered", line)
		}
		return err
	})
	if err != nil {
		t.Errorf("the same port again: %v", err)
	}
}

// TestNotConnected: a client that is still connecting to a pod that is gone reaches another pod.
func TestNotConnected(t *testing.T) {
	s := newStage(t)
	f := s.family(false)
	s.lead(f, f.a)
	s.silence(s.a)
	connected := make(chan error, 1)
	go func() {
		c, err := s.Outside.Dial("tcp", f.vip, patience)
		if err == nil {
			if got := c.Ask(patience); got.By != "b" {
				err = fmt.Errorf("%v, want b", got)
			}
			c.Close()
		}
		connected <- err
	}()
	var ends []conntrack.Entry
	s.eventually("the client tries", func() bool { ends = s.find(f, f.a); return len(ends) == 1 })
	s.lead(f, f.b)
	s.start(nil).Reset(ends)
	if err := <-connected; err != nil {
		t.Error(err)
	}
	if s.rules() {
		t.Error("rules were loaded for a connection that is not established")
	}
}

// TestNothingStays: unneeded rules are removed, including rules of a killed agent. Marked entries time out.
func TestNothingStays(t *testing.T) {
	s := newStage(t)
	f := s.family(true)
	s.nft(s.node, "table inet "+tableName+" {\nchain left {\n}\n}")
	r := s.start(func(p *periods) { p.lifetime, p.again, p.linger = time.Second, 100*time.Millisecond, time.Second })
	s.eventually("what was left is gone", func() bool { return !s.rules() })
	s.lead(f, f.a)
	s.dial(s.pod, f.vip, "a")
	s.silence(s.a)
	r.Reset(s.find(f, f.a))
	s.eventually("the entry is gone", func() bool { return len(s.find(f, f.a)) == 0 })
	s.eventually("the rules are gone", func() bool { return !s.rules() })
	s.stop()
	r = s.start(func(p *periods) { p.linger = time.Hour })
	s.lead(f, f.b)
	s.dial(s.pod, f.vip, "b")
	r.Reset(s.find(f, f.b))
	s.eventually("the rules are there", s.rules)
	if s.stop(); s.rules() {
		t.Error("the rules are left when the agent ends")
	}
}

// TestBothEnds: an endpoint that still runs also reads a reset.
func TestBothEnds(t *testing.T) {
	for name, is4 := range families {
		s := newStage(t)
		f := s.family(is4)
		f.a = netip.AddrPortFrom(f.a.Addr(), 9090)
		read := make(chan error, 1)
		var l net.Listener
		err := s.a.Do(func() (err error) {
			l, err = net.Listen("tcp", f.a.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err == nil {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, err = conn.Read(make([]byte, 1))
			}
			read <- err
		}()
		s.lead(f, f.a)
		c, err := s.Outside.Dial("tcp", f.nodePort, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s.start(nil).Reset(s.find(f, f.a))
		if err := c.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the client: %v, want a reset", name, err)
		}
		if err := <-read; !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the endpoint: %v, want a reset", name, err)
		}
	}
}
