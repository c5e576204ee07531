package reset

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// patience is the time limit for an expected event. It is long, because a loaded machine is no failure.
const patience = 30 * time.Second

// stage is a Service on a node, with the pods a and b. At first all clients reach a.
type stage struct {
	*testnet.Net
	t                 *testing.T
	node, far         *testnet.Host
	a, b, pod, farPod *testnet.Host
	legacy            bool   // translate with iptables, not with nft
	stop              func() // stops the Resetter
}

// family is the part of a stage in IPv4 or IPv6.
type family struct {
	is4           bool
	vip, nodePort netip.AddrPort
	a, b          netip.AddrPort
}

var families = map[string]bool{"IPv4": true, "IPv6": false}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Net: testnet.New(t), t: t}
	pod := func(node *testnet.Host, name string, last int) *testnet.Host {
		return s.Pod(node, name, netip.MustParseAddr(fmt.Sprint("10.244.1.", last)), netip.MustParseAddr(fmt.Sprint("fd00:244::", last)))
	}
	s.node, s.far = s.Node("node"), s.Node("far")
	s.a, s.b, s.pod, s.farPod = pod(s.node, "a", 5), pod(s.node, "b", 6), pod(s.node, "pod", 7), pod(s.far, "far-pod", 8)
	for _, is4 := range families {
		f := s.family(is4)
		if err := s.Route(netip.PrefixFrom(f.vip.Addr(), f.vip.Addr().BitLen()), s.node); err != nil {
			t.Fatal(err)
		}
		s.a.Serve("tcp", f.a)
		s.b.Serve("tcp", f.b)
	}
	return s
}

func (s *stage) family(is4 bool) family {
	vip := netip.MustParseAddr("fd00:96::10")
	if is4 {
		vip = netip.MustParseAddr("10.96.0.10")
	}
	return family{
		is4: is4, vip: netip.AddrPortFrom(vip, 80), nodePort: netip.AddrPortFrom(s.node.Addr(is4), 30080),
		a: netip.AddrPortFrom(s.a.Addr(is4), 8080), b: netip.AddrPortFrom(s.b.Addr(is4), 8080),
	}
}

// lead makes the node translate new connections of the family. It masquerades connections to the NodePort.
func (s *stage) lead(f family, to netip.AddrPort) {
	s.t.Helper()
	if s.legacy {
		s.leadLegacy(f, to)
		return
	}
	ip := "ip6"
	if f.is4 {
		ip = "ip"
	}
	name := "service-" + ip
	rules := fmt.Sprintf(`
		%[1]s daddr %[2]s tcp dport 80 dnat to %[5]s
		%[1]s daddr %[3]s tcp dport 30080 meta mark set 0x4000 dnat to %[5]s`, ip, f.vip.Addr(), f.nodePort.Addr(), "", to)
	s.nft(s.node, fmt.Sprintf(`
		table %[1]s %[2]s {}
		delete table %[1]s %[2]s
		table %[1]s %[2]s {
			chain in { type nat hook prerouting priority -100; %[3]s
			}
			chain out { type nat hook output priority -100; %[3]s
			}
			chain post { type nat hook postrouting priority 100; meta mark 0x4000 masquerade
			}
		}`, ip, name, rules))
}

func (s *stage) leadLegacy(f family, to netip.AddrPort) {
	s.t.Helper()
	program := "ip6tables-legacy-restore"
	if f.is4 {
		program = "iptables-legacy-restore"
	}
	var rules strings.Builder
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		fmt.Fprintf(&rules, "-A %s -d %s -p tcp --dport 80 -j DNAT --to-destination %s\n", chain, f.vip.Addr(), to)
		fmt.Fprintf(&rules, "-A %s -d %s -p tcp --dport 30080 -j MARK --set-mark 0x4000\n", chain, f.nodePort.Addr())
		fmt.Fprintf(&rules, "-A %s -d %s -p tcp --dport 30080 -j DNAT --to-destination %s\n", chain, f.nodePort.Addr(), to)
	}
	s.run(s.node, "*nat\n"+rules.String()+"-A POSTROUTING -m mark --mark 0x4000 -j MASQUERADE\nCOMMIT\n", program)
}

func (s *stage) nft(h *testnet.Host, text string) {
	s.t.Helper()
	s.run(h, text, "nft", "-f", "-")
}

func (s *stage) run(h *testnet.Host, stdin string, command ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "nsenter", append([]string{"--net=" + h.Path()}, command...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v: %s", command, err, out)
	}
	return string(out)
}

// silence drops all packets from and to a pod, as if the pod was gone.
func (s *stage) silence(h *testnet.Host) {
	s.t.Helper()
	s.nft(h, `table inet silence {
		chain in { type filter hook prerouting priority -400; policy drop; }
		chain out { type filter hook output priority -400; policy drop; }
	}`)
}

// dial connects, and fails the test unless by answers.
func (s *stage) dial(h *testnet.Host, to netip.AddrPort, by string) *testnet.Conn {
	s.t.Helper()
	c, err := h.Dial("tcp", to, patience)
	if err != nil {
		s.t.Fatalf("%s to %v: %v", h.Name, to, err)
	}
	s.t.Cleanup(c.Close)
	if got := c.Ask(patience); got.By != by {
		s.t.Fatalf("%s to %v: %v, want %s", h.Name, to, got, by)
	}
	return c
}

// start runs a Resetter on the node until stop or the end of the test.
func (s *stage) start(change func(*periods)) *Resetter {
	s.t.Helper()
	log := slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := New(Config{Log: log, Flows: conntrack.New(conntrack.Config{Log: log})})
	r.times.lifetime = time.Minute // a loaded machine may need longer than a real one
	if change != nil {
		change(&r.times)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.node.Do(func() error { return r.Run(ctx) }) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(s.stop)
	return r
}

// find returns the connections to an endpoint.
func (s *stage) find(f family, to netip.AddrPort) (all []conntrack.Entry) {
	s.t.Helper()
	err := s.node.Do(func() error {
		flows := conntrack.New(conntrack.Config{Log: slog.New(slog.DiscardHandler)})
		defer flows.Close()
		any := netip.AddrPortFrom(netip.IPv6Unspecified(), 30080)
		if f.is4 {
			any = netip.AddrPortFrom(netip.IPv4Unspecified(), 30080)
		}
		found, err := flows.Find(s.t.Context(), []flow.Flow{
			{Proto: api.TCP, Frontend: f.vip, Endpoint: to}, {Proto: api.TCP, Frontend: any, Endpoint: to},
		})
		for _, m := range found {
			all = append(all, m.Entry)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// eventually waits for a condition.
func (s *stage) eventually(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// rules reports whether the node has Fairway's rules.
func (s *stage) rules() bool {
	s.t.Helper()
	return strings.Contains(s.run(s.node, "", "nft", "list", "tables"), tableName)
}
