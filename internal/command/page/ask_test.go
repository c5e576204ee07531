package page

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/path/trace"
)

// A person reads each hook once, and the end.
func TestNarrator(t *testing.T) {
	packet := func(dst string) *trace.Packet {
		return &trace.Packet{Src: netip.MustParseAddrPort("10.244.1.4:4711"), Dst: netip.MustParseAddrPort(dst)}
	}
	rule := func(hook, verdict string) *trace.Rule {
		return &trace.Rule{Family: "ip", Table: "firewall", Chain: hook, Hook: hook, Verdict: verdict, Handle: 2}
	}
	told := narrator{}
	var lines []string
	for _, o := range []trace.Observation{
		{Node: "node-1", Note: "armed"},
		{Node: "node-1", Rule: rule("prerouting", "continue"), Packet: packet("10.96.0.1:80")},
		{Node: "node-1", Rule: rule("prerouting", "goto"), Packet: packet("10.96.0.1:80")},
		{Node: "node-1", Flow: &trace.Flow{Event: "update"}},
		{Node: "node-1", Rule: rule("forward", "accept"), Packet: packet("10.244.2.6:80")},
		{Node: "node-2", Rule: rule("forward", "accept"), Packet: packet("10.244.2.6:80"), Reply: true},
		{Node: "node-2", Rule: rule("forward", "drop"), Packet: packet("10.244.2.6:80")},
		{Node: "node-2", Drop: &trace.Drop{Reason: "NETFILTER_DROP", Where: "nft_do_chain"}},
	} {
		if text := told.tell(o); text != "" {
			lines = append(lines, o.Node+": "+text)
		}
	}
	want := `node-1: armed
node-1: prerouting  10.244.1.4:4711 → 10.96.0.1:80
node-1: forward  10.244.1.4:4711 → 10.244.2.6:80
node-2: reply  forward  10.244.1.4:4711 → 10.244.2.6:80
node-2: ends at forward: ip firewall forward #2
node-2: dropped by the kernel: NETFILTER_DROP nft_do_chain`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
