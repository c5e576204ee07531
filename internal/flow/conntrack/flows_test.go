package conntrack

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A place holds a Service's addresses in one family, in a network with two pods.
type place struct {
	vip, nodePort netip.AddrPort // addresses that clients use
	any           netip.AddrPort // the NodePort's frontend
	a, b          netip.AddrPort // the pods' servers
}

const target = 5353

// long is the time limit for an expected answer or refusal. A loaded machine is no failure.
const long = 30 * time.Second

// stage is a node with two pods that serve UDP and TCP.
type stage struct {
	*testnet.Net
	node   *testnet.Host
	pod    *testnet.Host // a
	places []place       // IPv4, IPv6
	t      *testing.T
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Net: testnet.New(t), t: t}
	s.node = s.Node("node")
	a := s.Pod(s.node, "a", netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:244::5"))
	s.pod = a
	b := s.Pod(s.node, "b", netip.MustParseAddr("10.244.1.6"), netip.MustParseAddr("fd00:244::6"))
	for _, is4 := range []bool{true, false} {
		vip := netip.MustParseAddr("10.96.0.10")
		if !is4 {
			vip = netip.MustParseAddr("fd00:96::10")
		}
		p := place{
			vip: netip.AddrPortFrom(vip, 53), nodePort: netip.AddrPortFrom(s.node.Addr(is4), 30053),
			any: netip.AddrPortFrom(unspecified(is4), 30053),
			a:   netip.AddrPortFrom(a.Addr(is4), target), b: netip.AddrPortFrom(b.Addr(is4), target),
		}
		if err := s.Route(netip.PrefixFrom(vip, vip.BitLen()), s.node); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"udp", "tcp"} {
			a.Serve(network, p.a)
			b.Serve(network, p.b)
		}
		s.places = append(s.places, p)
	}
	return s
}

// lead makes the node translate every frontend to the pod that choose returns. If choose is nil, the node translates
// nothing.
func (s *stage) lead(choose func(place) netip.AddrPort) {
	s.t.Helper()
	var rules strings.Builder
	for _, p := range s.places {
		if choose == nil {
			break
		}
		ip := "ip"
		if p.vip.Addr().Is6() {
			ip = "ip6"
		}
		for _, proto := range []string{"udp", "tcp"} {
			fmt.Fprintf(&rules, "%s daddr %s %s dport 53 dnat %s to %s\n", ip, p.vip.Addr(), proto, ip, choose(p))
			fmt.Fprintf(&rules, "%s daddr %s %s dport 30053 dnat %s to %s\n", ip, p.nodePort.Addr(), proto, ip, choose(p))
		}
	}
	cmd := exec.CommandContext(s.t.Context(), "nsenter", "--net="+s.node.Path(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`
		table inet test {}
		flush table inet test
		table inet test {
			chain pre {
				type nat hook prerouting priority dstnat
				ct state new counter # the node tracks flows even without the rest
				%s
			}
		}`, rules.String()))
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("load rules: %v: %s", err, out)
	}
}

// A talker is a client that keeps its port.
type talker struct {
	*testnet.Conn
	t    *testing.T
	what string
}

func (s *stage) talk(network string, to netip.AddrPort) talker {
	s.t.Helper()
	return s.talkFrom(s.Outside, network, to)
}

func (s *stage) talkFrom(h *testnet.Host, network string, to netip.AddrPort) talker {
	s.t.Helper()
	c, err := h.Dial(network, to, long)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return talker{c, s.t, fmt.Sprintf("%s to %v", network, to)}
}

// expect sends a request. The host called by must answer, or the client must be refused if by is "".
func (c talker) expect(when, by string) {
	c.t.Helper()
	got := c.Ask(long)
	if by == "" && got.Outcome != testnet.Refused || got.By != by {
		c.t.Errorf("%s, %s: %v, want %q", when, c.what, got, by)
	}
}

// TestEndpointLeaves: real clients keep their ports. Each client reaches the new endpoint only after the deletion of
// its own flow.
func TestEndpointLeaves(t *testing.T) {
	s := newStage(t)
	w := newWorld(t, s.node.Namespace, Config{})
	s.lead(func(p place) netip.AddrPort { return p.a })
	for _, p := range s.places {
		vip, other, port := s.talk("udp", p.vip), s.talk("udp", p.vip), s.talk("udp", p.nodePort)
		tcp, straight := s.talk("tcp", p.vip), s.talk("udp", p.a)
		all := []talker{vip, other, port, tcp, straight}
		for _, c := range all {
			c.expect("at first", "a")
		}
		s.lead(func(p place) netip.AddrPort { return p.b })
		for _, c := range all {
			c.expect("endpoint replaced, flows kept", "a") // or the test would prove nothing
		}
		if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.vip, Endpoint: p.b}, flow.Flow{Proto: api.UDP, Frontend: p.vip}); n != 0 {
			t.Errorf("%v: %d flows of other kinds deleted", p.vip, n)
		}
		if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.vip, Endpoint: p.a}); n != 2 {
			t.Errorf("%v: %d flows deleted, want 2", p.vip, n)
		}
		vip.expect("flow deleted", "b")
		other.expect("flow deleted", "b")
		port.expect("flow of the ClusterIP deleted", "a")
		if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.any, Endpoint: p.a}); n != 1 {
			t.Errorf("%v: %d flows deleted, want 1", p.any, n)
		}
		port.expect("flow deleted", "b")
		tcp.expect("in the end", "a")
		straight.expect("in the end", "a")
		if n := w.delete(flow.Flow{Proto: api.TCP, Frontend: p.vip, Endpoint: p.a}); n != 1 {
			t.Errorf("%v: %d TCP flows deleted, want 1", p.vip, n)
		}
		s.lead(func(p place) netip.AddrPort { return p.a })
	}
}

// TestServiceComes: a client uses a NodePort before the Service has an endpoint. It gets an answer once the
// untranslated flow is deleted. A flow through this node to the same port of another machine stays.
func TestServiceComes(t *testing.T) {
	s := newStage(t)
	w := newWorld(t, s.node.Namespace, Config{})
	far := s.Node("far")
	s.lead(nil)
	for _, p := range s.places {
		at := netip.AddrPortFrom(far.Addr(p.vip.Addr().Is4()), p.nodePort.Port())
		far.Serve("udp", at)
		through := s.talkFrom(s.pod, "udp", at)
		through.expect("no Service yet", "far")
		asked := s.talk("udp", p.nodePort)
		asked.expect("no Service yet", "")
		s.lead(func(p place) netip.AddrPort { return p.a })
		asked.expect("the Service came, the flow is kept", "") // or the test would prove nothing
		if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.any, Endpoint: p.a}); n != 0 {
			t.Errorf("%v: %d translated flows deleted", p.any, n)
		}
		if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.any}); n != 1 {
			t.Errorf("%v: %d flows deleted, want 1", p.any, n)
		}
		asked.expect("flow deleted", "a")
		s.lead(nil)
	}
}

// TestNodePortElsewhere: flows to the node's own server, on an address without NodePorts, stay.
func TestNodePortElsewhere(t *testing.T) {
	s := newStage(t)
	s.lead(nil)
	for _, p := range s.places {
		s.node.Serve("udp", p.nodePort)
		own := s.talk("udp", p.nodePort)
		own.expect("a program of the node", "node")
		for served, want := range map[bool]int{false: 0, true: 1} {
			w := newWorld(t, s.node.Namespace, Config{NodePort: func(netip.Addr) bool { return served }})
			if n := w.delete(flow.Flow{Proto: api.UDP, Frontend: p.any}); n != want {
				t.Errorf("NodePorts on %v: %v: %d flows deleted, want %d", p.nodePort, served, n, want)
			}
			own.expect("again", "node")
		}
	}
}
