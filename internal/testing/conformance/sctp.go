package conformance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// sctp: SCTP handshakes reach the table's endpoints at each kind of frontend, before and after a change. Some scenarios
// and random tables have SCTP too.
func (s suite) sctp(t testing.TB) {
	r := sixRig(t, s)
	at := func(addr string, lasts time.Duration, which ...int) *service.Frontend {
		f := web("sig", addr, api.SCTP, which...)
		f.Affinity = lasts
		return f
	}
	stays := time.Hour
	if s.unsupported["affinity"] != "" {
		stays = 0
	}
	for _, which := range [][]int{{0, 1, 3}, {1, 2}} {
		table := tableOf(at("10.96.0.1:7000", 0, which...), at("0.0.0.0:30700", 0, which...), at("10.96.0.2:7000", stays, which...),
			at("10.96.0.3:7000", 0), web("web", "10.96.0.1:80", api.TCP, which...))
		table.Settings.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.11/32")}
		report(t, r.sync(table))
		report(t, r.checkSynced(table))
		report(t, r.packets(r.everywhere(table)))
	}
}
