package testnet

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

var (
	podA4 = netip.MustParseAddr("10.244.1.5")
	podA6 = netip.MustParseAddr("fd00:10:244:1::5")
	podB4 = netip.MustParseAddr("10.244.1.6")
	podB6 = netip.MustParseAddr("fd00:10:244:1::6")
	podC4 = netip.MustParseAddr("10.244.2.5")
	podC6 = netip.MustParseAddr("fd00:10:244:2::5")
)

// small is a network of two nodes, three pods and a client.
type small struct {
	*Net
	node1, node2, a, b, c *Host
}

func newSmall(t *testing.T) small {
	n := New(t)
	s := small{Net: n, node1: n.Node("node-1"), node2: n.Node("node-2")}
	s.a = n.Pod(s.node1, "pod-a", podA4, podA6)
	s.b = n.Pod(s.node1, "pod-b", podB4, podB6)
	s.c = n.Pod(s.node2, "pod-c", podC4, podC6)
	return s
}

// Every host reaches every pod, over both families and protocols. The pod sees the host's own address, because no
// address is translated.
func TestEverybodyReachesEveryPod(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	clients := []*Host{s.node1, s.node2, s.a, s.b, s.c, s.Outside}
	for _, server := range []*Host{s.a, s.c, s.node2} {
		for _, ip := range server.Addrs {
			at := netip.AddrPortFrom(ip, 8080)
			for _, network := range []string{"tcp", "udp", "sctp"} {
				server.Serve(network, at)
				for _, c := range clients {
					got := c.Ask(network, at, 2*time.Second)
					if got.Outcome != Answered || got.By != server.Name || got.At != at {
						t.Errorf("%s asked %s %v: %v", c.Name, network, at, got)
					}
					if want := c.Addr(ip.Is4()); c != server && got.Seen.Addr() != want {
						t.Errorf("%s asked %s %v: was seen as %v, want %v", c.Name, network, at, got.Seen, want)
					}
				}
			}
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	rules := `table inet t {
		chain in {
			type filter hook input priority 0;
			th dport 81 drop
			th dport 82 reject
		}
		chain out {
			type filter hook output priority 0;
			th dport 83 drop
			th dport 84 reject
		}
	}`
	for _, h := range []*Host{s.a, s.b} {
		if err := h.Do(func() error { return nft(rules) }); err != nil {
			t.Fatal(err)
		}
	}
	var questions []Question
	var wants []Outcome
	for _, ip := range s.a.Addrs {
		for _, network := range []string{"tcp", "udp", "sctp"} {
			s.a.Serve(network, netip.AddrPortFrom(ip, 85))
			for port, want := range map[uint16]Outcome{80: Refused, 81: Dropped, 82: Refused, 83: Dropped, 84: Refused, 85: Answered} {
				patience := 20 * time.Second
				if want == Dropped {
					patience = Patience
				}
				if network == "sctp" && port == 80 {
					continue // a raw socket has all ports and refuses none
				}
				if network != "sctp" {
					questions, wants = append(questions, Question{network, netip.AddrPortFrom(ip, port), patience}), append(wants, want)
				}
				got := s.b.Ask(network, netip.AddrPortFrom(ip, port), patience)
				if got.Outcome != want {
					t.Errorf("%s %v port %d: %v, want %v", network, ip, port, got, want)
				}
			}
		}
	}
	for i, got := range s.b.AskMany(questions) {
		if got.Outcome != wants[i] || got.Outcome == Answered && (got.By != s.a.Name || got.At != questions[i].To) {
			t.Errorf("%+v at once with others: %v, want %v", questions[i], got, wants[i])
		}
	}
}

func nft(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.New(string(out))
	}
	return nil
}

// A connection can carry several requests, and is cut when its server stops.
func TestConnection(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	at := netip.AddrPortFrom(podC4, 8080)
	stop := s.c.Serve("tcp", at)
	c, err := s.Outside.Dial("tcp", at, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if got := c.Ask(time.Second); got.Outcome != Answered || got.Seen != c.LocalAddr() {
			t.Fatalf("asked again: %v, want an answer to %v", got, c.LocalAddr())
		}
	}
	stop()
	if got := c.Ask(time.Second); got.Outcome != Failed {
		t.Errorf("asked a server that stopped: %v", got)
	}
}

// A node's additional address is reachable from everywhere.
func TestAddAddr(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	more := netip.MustParseAddr("192.0.2.11")
	s.node1.AddAddr(more)
	s.node1.Serve("tcp", netip.AddrPortFrom(more, 80))
	for _, c := range []*Host{s.node1, s.node2, s.a, s.c, s.Outside} {
		if got := c.Ask("tcp", netip.AddrPortFrom(more, 80), time.Second); got.Outcome != Answered {
			t.Errorf("from %s: %v", c.Name, got)
		}
	}
}

// Do returns to its earlier namespace, even if the function fails, ends the goroutine or panics. No namespace of a test
// has a route to the outside.
func TestDoReturns(t *testing.T) {
	home, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n := NewNamespace(t, "n")
	inside := ""
	broken := errors.New("broken")
	if err := n.Do(func() error {
		inside, _ = os.Readlink("/proc/thread-self/ns/net")
		return broken
	}); !errors.Is(err, broken) {
		t.Errorf("Do returned %v, want the function's error", err)
	}
	if inside == home || inside == "" {
		t.Errorf("Do ran in %q", inside)
	}
	func() {
		defer func() { _ = recover() }()
		_ = n.Do(func() error { panic("oh") })
	}()
	if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != home {
		t.Errorf("after Do: in %q, was in %q", now, home)
	}
	if file, _ := os.Readlink(n.Path()); file != inside {
		t.Errorf("Path leads to %q, want %q", file, inside)
	}
}

func TestNoUplink(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	got := s.a.Ask("udp", netip.MustParseAddrPort("203.0.113.77:53"), Patience)
	if got.Outcome == Answered {
		t.Errorf("a packet to an address that no host has: %v", got)
	}
	if err := s.Fabric.Do(func() error {
		routes, err := exec.Command("ip", "route", "show", "default").Output()
		if len(routes) > 0 {
			t.Errorf("the fabric has a default route: %s", routes)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
