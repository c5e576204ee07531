package share

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestOverShare: a pod over its share remains so until it has half of a share, or the table has room.
func TestOverShare(t *testing.T) {
	a, b := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")
	type pods = map[netip.Addr]int
	for _, test := range []struct {
		name      string
		flows     int // of 1,000
		held, was pods
		counting  bool
		want      pods
	}{
		{"room", 799, pods{a: 799}, nil, false, nil},
		{"nearly full", 800, pods{a: 700, b: 100}, nil, true, pods{a: 700}},
		{"exactly a share", 800, pods{a: 200}, nil, true, pods{}},
		{"two greedy pods", 900, pods{a: 450, b: 450}, nil, true, pods{a: 450, b: 450}},
		{"full: the least share", 1000, pods{a: 950, b: 50}, nil, true, pods{a: 950}},
		{"full, but not by pods", 1000, pods{a: 50, b: 50}, nil, true, pods{}},
		{"was over: more than half", 750, pods{a: 126, b: 126}, pods{a: 700}, true, pods{a: 126}},
		{"was over: half", 750, pods{a: 125}, pods{a: 700}, true, pods{}},
		{"was over: no flow", 900, pods{}, pods{a: 700}, true, pods{}},
		{"was over: room", 599, pods{a: 599}, pods{a: 700}, false, nil},
	} {
		if got := counting(test.flows, 1000, len(test.was) > 0); got != test.counting {
			t.Errorf("%s: counting is %t", test.name, got)
		}
		if got := overShare(test.held, test.was, test.flows, 1000); test.counting && !maps.Equal(got, test.want) {
			t.Errorf("%s: %v are over their share, want %v", test.name, got, test.want)
		}
	}
}

// limit is the size of the table in these tests: the kernel's own is the machine's.
const limit = 400

// world is a node with two pods, and a Keeper that takes the node's table for a small one.
type world struct {
	*Keeper
	t             *testing.T
	node          *testnet.Host
	greedy, quiet *testnet.Host
	outside       *testnet.Host
	log           testnet.Log
	events        []string
	now           string
}

func newWorld(t *testing.T) *world {
	testnet.NeedRoot(t, "makes network namespaces")
	n := testnet.New(t)
	node := n.Node("node")
	w := &world{
		t: t, node: node, outside: n.Outside,
		greedy: n.Pod(node, "greedy", netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")),
		quiet:  n.Pod(node, "quiet", netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:10:244:1::3")),
	}
	w.nft("table inet any { chain forward { type filter hook forward priority 0; ct state invalid counter; }; }") // begins connection tracking
	w.Keeper = &Keeper{
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Pods: func() []netip.Prefix {
			return []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}
		},
		Event: func(reason, message string) { w.events = append(w.events, reason+": "+message) },
		Now:   func(message string) { w.now = message },
		Fill: func() (int, int, bool) {
			flows, _, ok := conntrack.Fill()
			return flows, limit, ok
		},
	}
	w.init()
	t.Cleanup(func() { w.do(func() error { w.end(t.Context()); return nil }) })
	return w
}

func (w *world) do(f func() error) {
	w.t.Helper()
	if err := w.node.Do(f); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) nft(text string) (out string) {
	w.t.Helper()
	w.do(func() error {
		b, err := exec.Command("nft", text).CombinedOutput()
		out = string(b)
		return err
	})
	return out
}

func (w *world) mustPass(counted bool) {
	w.t.Helper()
	w.do(func() error {
		got, err := w.pass(w.t.Context())
		if got != counted {
			w.t.Errorf("the pass counted: %t, want %t", got, counted)
		}
		return err
	})
}

// open opens many connections: one socket sends to as many ports.
func (w *world) open(from *testnet.Host, to netip.Addr, many int) {
	w.t.Helper()
	err := from.Do(func() error {
		conn, err := net.ListenUDP("udp", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		for i := range many {
			if _, err := conn.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(to, uint16(20000+i))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// forget ends all flows to the ports of open.
func (w *world) forget() {
	w.t.Helper()
	w.do(func() error {
		found, err := w.flows.Audit(w.t.Context(), nil, func(e conntrack.Entry) bool { return e.Frontend().Port() >= 20000 })
		if err == nil {
			_, err = w.flows.Remove(w.t.Context(), found)
		}
		return err
	})
}

// check opens connections from a host, of TCP and UDP.
func (w *world) check(when string, from *testnet.Host, to netip.Addr, want testnet.Outcome) {
	w.t.Helper()
	patience := 10 * time.Second
	if want == testnet.Dropped {
		patience = testnet.Patience
	}
	for _, network := range []string{"tcp", "udp"} {
		if got := from.Ask(network, netip.AddrPortFrom(to, 80), patience); got.Outcome != want {
			w.t.Errorf("%s: %s by %s: %v, want %v", when, network, from.Name, got, want)
		}
	}
}

// oneWay opens a flow of UDP that never gets an answer, and returns a function that sends one more packet of it.
func (w *world) oneWay(from *testnet.Host, to netip.AddrPort) (send func()) {
	w.t.Helper()
	var client, server *net.UDPConn
	err := w.outside.Do(func() (err error) { server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)); return err })
	if err == nil {
		w.t.Cleanup(func() { server.Close() })
		err = from.Do(func() (err error) { client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); return err })
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { client.Close() })
	return func() {
		w.t.Helper()
		_, err := client.Write([]byte("x"))
		if err == nil {
			err = server.SetReadDeadline(time.Now().Add(5 * time.Second))
		}
		if err == nil {
			_, err = server.Read(make([]byte, 1))
		}
		if err != nil {
			w.t.Errorf("a packet of a flow without answers: %v", err)
		}
	}
}

// TestGreedyPod: a pod that fills the table opens no new connections, while its open ones go on and other pods open new
// ones. When its flows have ended, it opens connections again.
func TestGreedyPod(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			to := w.outside.Addrs[i]
			var open []*testnet.Conn
			for _, network := range []string{"tcp", "udp"} {
				w.outside.Serve(network, netip.AddrPortFrom(to, 80))
				conn, err := w.greedy.Dial(network, netip.AddrPortFrom(to, 80), 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if got := conn.Ask(10 * time.Second); got.Outcome != testnet.Answered {
					t.Fatalf("%s: %v", network, got)
				}
				open = append(open, conn)
			}
			send := w.oneWay(w.greedy, netip.AddrPortFrom(to, 514))
			send()
			w.open(w.greedy, to, 250)
			w.mustPass(false)
			w.check("with room", w.greedy, to, testnet.Answered)

			w.open(w.greedy, to, 80)
			w.mustPass(true)
			w.check("nearly full", w.greedy, to, testnet.Dropped)
			w.check("nearly full", w.quiet, to, testnet.Answered)
			for _, conn := range open {
				if got := conn.Ask(10 * time.Second); got.Outcome != testnet.Answered {
					t.Errorf("an open connection: %v", got)
				}
			}
			send()
			greedy, quiet := w.greedy.Addrs[i].String(), w.quiet.Addrs[i].String()
			if len(w.events) != 1 || !strings.HasPrefix(w.events[0], "PodOverShare: ") || !strings.Contains(w.now, greedy+" (33") || strings.Contains(w.now, quiet) {
				t.Errorf("events %q, status %q", w.events, w.now)
			}

			w.nft("flush ruleset")
			w.mustPass(true)
			w.check("after another program has removed the rules", w.greedy, to, testnet.Dropped)
			if len(w.events) != 1 {
				t.Errorf("events %q", w.events)
			}

			w.forget()
			w.mustPass(false)
			w.check("with room again", w.greedy, to, testnet.Answered)
			if out := w.nft("list tables"); strings.Contains(out, "fairway-conntrack") || w.now != "" {
				t.Errorf("status %q, tables\n%s", w.now, out)
			}
		})
	}
}

// TestRun: Run counts, refuses and reports, and leaves no table when it ends. A Keeper removes what an earlier one left.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.open(w.greedy, w.outside.Addrs[0], 350)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	now := w.Now
	w.Now = func(message string) { now(message); cancel() }
	w.do(func() error { return w.Run(ctx) })
	if len(w.events) != 1 || w.log.Count("all pods open new connections again") != 1 || w.now != "" {
		t.Errorf("events %q, status %q, log\n%s", w.events, w.now, &w.log)
	}
	absent := func(when string) {
		t.Helper()
		if out := w.nft("list tables"); strings.Contains(out, "fairway-conntrack") {
			t.Errorf("%s there is a table:\n%s", when, out)
		}
	}
	absent("after Run")
	w.mustPass(true)
	w.forget()
	w.over, w.state = nil, unknown // as the next agent
	w.mustPass(false)
	absent("after the next agent has started")
}

// TestNoPod: the node itself and clients elsewhere have no share.
func TestNoPod(t *testing.T) {
	w := newWorld(t)
	pods := w.Pods
	w.Pods = func() []netip.Prefix { return append(pods(), testnet.Nodes4, testnet.Nodes6) }
	for i, to := range w.quiet.Addrs {
		w.open(w.node, w.outside.Addrs[i], 90)
		w.open(w.outside, to, 90)
	}
	w.mustPass(true)
	if len(w.over) != 0 || w.now != "" {
		t.Errorf("%v are over their share: %s", w.over, w.now)
	}
	if out := w.nft("list tables"); strings.Contains(out, "fairway-conntrack") {
		t.Errorf("there is a table without a greedy pod:\n%s", out)
	}
}
