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

// nft runs the program nft on a host.
func (s *stage) nft(h *testnet.Host, text string) (out string) {
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
