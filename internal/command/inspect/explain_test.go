package inspect

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// TestNodePortsOnLoopback: explain names the loopback addresses of a NodePort's family, which the agent itself serves.
func TestNodePortsOnLoopback(t *testing.T) {
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
	e := explanation{Report: service.Report{Frontends: []service.FrontendReport{
		{Address: "0.0.0.0:30080/TCP", Kind: service.KindNodePort, ServedAt: []string{"192.0.2.1"}},
		{Address: "[::]:30080/UDP", Kind: service.KindNodePort},
		{Address: "0.0.0.0:30081/SCTP", Kind: service.KindNodePort, ServedAt: []string{"192.0.2.1"}},
		{Address: "10.96.0.9:80/TCP", Kind: service.KindClusterIP},
	}}}
	e.addLoopback(loopback)
	for i, want := range []string{"192.0.2.1 127.0.0.1", "::1", "192.0.2.1", ""} {
		if got := strings.Join(e.Frontends[i].ServedAt, " "); got != want {
			t.Errorf("%s is served at %q, want %q", e.Frontends[i].Address, got, want)
		}
	}
}
