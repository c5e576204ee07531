package flow_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestUnanswered: an endpoint does not answer a connection's first packet, as on a dead node. When the endpoint gets no
// new connections any more, the connection goes to another endpoint. This also works if the agent restarts in between.
func TestUnanswered(t *testing.T) {
	yes, no := ready(true), ready(false)
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("agent killed ", killed), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, service.TerminateGone)
			s.endpoints(&yes, nil)
			stop := s.start(!killed)
			var open []*testnet.Conn
			for _, vip := range s.vips {
				open = append(open, s.dial(s.Outside, "tcp", netip.AddrPortFrom(vip, 80), "a"))
			}
			s.silent(s.a)
			type result struct {
				conn *testnet.Conn
				err  error
			}
			done := make(chan result, len(s.vips))
			for _, vip := range s.vips {
				go func() {
					c, err := s.Outside.Dial("tcp", netip.AddrPortFrom(vip, 80), patience)
					done <- result{c, err}
				}()
			}
			s.eventually("both families' first packets reach a", func() bool { return s.dropped(s.a, "ip") && s.dropped(s.a, "ip6") })
			s.endpoints(&no, &yes)
			if killed {
				s.dial(s.pod, "tcp", netip.AddrPortFrom(s.vips[true], 80), "b")
				stop()
				s.api.change(func() {})
				s.start(true)
			}
			for range s.vips {
				r := <-done
				if r.err != nil {
					t.Errorf("no connection: %v", r.err)
					continue
				}
				s.goes(r.conn, "b")
				r.conn.Close()
			}
			for _, c := range open {
				if got := c.Ask(patience); got.By != "a" {
					t.Errorf("an open connection: %v, want it to go on", got)
				}
			}
		})
	}
}

// TestTooEarly: clients inside the cluster connect to an external address before the node serves it, so their first
// packets leave the node untranslated. When a Service gets the address, they are connected. This also works if the
// Service gets it while no agent runs.
func TestTooEarly(t *testing.T) {
	yes := ready(true)
	external := netip.MustParseAddr("192.0.2.7")
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("agent restarted ", restarted), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, service.TerminateGone)
			s.endpoints(&yes, nil)
			s.nft(s.Fabric, `table ip early { chain in { type filter hook prerouting priority 0; ip daddr 192.0.2.7 counter drop; }; }`)
			stop := s.start(true)
			s.dial(s.pod, "tcp", netip.AddrPortFrom(s.vips[true], 80), "a") // the rules are there
			done := make(chan testnet.Answer, 2)
			for _, h := range []*testnet.Host{s.node, s.pod} {
				go func() { done <- h.Ask("tcp", netip.AddrPortFrom(external, 80), patience) }()
			}
			s.eventually("both first packets leave the node", func() bool {
				out := s.nft(s.Fabric, "list table ip early")
				return !strings.Contains(out, "packets 0 ") && !strings.Contains(out, "packets 1 ")
			})
			if restarted {
				stop()
			}
			s.api.change(func() {
				changed := *s.api.service
				changed.ExternalIPs = []netip.Addr{external}
				s.api.service = &changed
			})
			if restarted {
				s.start(true)
			}
			for range 2 {
				if got := <-done; got.By != "a" {
					t.Errorf("%v, want a to answer", got)
				}
			}
		})
	}
}

// silent makes a pod drop the first packets of connections.
func (s *stage) silent(h *testnet.Host) {
	s.t.Helper()
	s.nft(h, `table inet silent { chain in { type filter hook input priority 0;
		meta nfproto ipv4 tcp flags & (syn | ack) == syn counter drop
		meta nfproto ipv6 tcp flags & (syn | ack) == syn counter drop
	}; }`)
}

// dropped reports whether the rule of silent for a family has dropped a packet.
func (s *stage) dropped(h *testnet.Host, family string) bool {
	s.t.Helper()
	rule := map[string]string{"ip": "nfproto ipv4", "ip6": "nfproto ipv6"}[family]
	for line := range strings.Lines(s.nft(h, "list table inet silent")) {
		if strings.Contains(line, rule) {
			return !strings.Contains(line, "packets 0 ")
		}
	}
	return false
}

// nft runs the program nft in a namespace.
func (s *stage) nft(h interface{ Do(func() error) error }, text string) (out string) {
	s.t.Helper()
	if err := h.Do(func() error {
		b, err := exec.Command("nft", text).CombinedOutput()
		out = string(b)
		return err
	}); err != nil {
		s.t.Fatalf("nft: %v: %s", err, out)
	}
	return out
}
