package proxy

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/service"
)

// newBuild returns a Loop of which only build is called: it has no datapath.
func newBuild(view func() service.Node) (*Loop, *api) {
	a := newAPI()
	return New(Config{
		Log: slog.New(slog.DiscardHandler), Source: a, View: view,
		Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
	}), a
}

// A node that joins takes its address from a Service that had it as an external IP, and no
// Service without external addresses is compiled again for it.
func TestNodeAddressesChange(t *testing.T) {
	var node service.Node
	l, a := newBuild(func() service.Node { return node })
	grab, other := a.set(1), a.set(2)
	joins := netip.MustParseAddr("172.18.0.13")
	a.services[grab].ExternalIPs = []netip.Addr{joins}
	l.build()
	before := l.table
	if n := len(before.Entry(grab).Frontends); n != 2 {
		t.Fatalf("%d frontends, want 2", n)
	}
	node.NodeAddrs = service.NewAddrSet(joins)
	l.build()
	if e := l.table.Entry(grab); len(e.Frontends) != 1 || len(e.Problems) != 1 {
		t.Errorf("%d frontends, problems %v; want the ClusterIP's and one problem", len(e.Frontends), e.Problems)
	}
	if l.table.Entry(other) != before.Entry(other) {
		t.Error("a Service without external addresses was compiled again")
	}
	node.NodeAddrs = nil
	l.build()
	if n := len(l.table.Entry(grab).Frontends); n != 2 {
		t.Errorf("%d frontends after the node left, want 2", n)
	}
}
