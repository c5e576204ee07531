package proxy

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// newBuild returns a Loop of which only build is called: it has no datapath.
func newBuild(facts func() service.Facts) (*Loop, *fakeSource) {
	a := newAPI()
	return New(Config{
		Log: slog.New(slog.DiscardHandler), Source: a, Facts: facts,
		Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
	}), a
}

// A node that joins takes its address from a Service that had it as an external IP, and no
// Service without external addresses is compiled again for it.
func TestNodeAddressesChange(t *testing.T) {
	var facts service.Facts
	l, a := newBuild(func() service.Facts { return facts })
	grab, other := a.set(1), a.set(2)
	joins := netip.MustParseAddr("172.18.0.13")
	a.services[grab].ExternalIPs = []netip.Addr{joins}
	l.build()
	before := l.table
	if n := len(before.Entry(grab).Frontends); n != 2 {
		t.Fatalf("%d frontends, want 2", n)
	}
	facts.NodeAddrs = service.NewAddrSet(joins)
	l.build()
	if e := l.table.Entry(grab); len(e.Frontends) != 1 || len(e.Problems) != 1 {
		t.Errorf("%d frontends, problems %v; want the ClusterIP's and one problem", len(e.Frontends), e.Problems)
	}
	if l.table.Entry(other) != before.Entry(other) {
		t.Error("a Service without external addresses was compiled again")
	}
	facts.NodeAddrs = nil
	l.build()
	if n := len(l.table.Entry(grab).Frontends); n != 2 {
		t.Errorf("%d frontends after the node left, want 2", n)
	}
}

// What peers declare dead is left out of the Services that have endpoints there, and no other
// Service is compiled again.
func TestDeadNode(t *testing.T) {
	var facts service.Facts
	l, a := newBuild(func() service.Facts { return facts })
	there, elsewhere := a.set(1), a.set(2)
	endpoint := func(addr, node string) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true}
	}
	port := a.services[there].Ports[0]
	a.slices[there] = []*service.Slice{{
		Name: there, Service: there, Ports: []service.SlicePort{{Name: port.Name, Proto: port.Proto, Port: 8080}},
		Endpoints: []service.SliceEndpoint{endpoint("10.244.2.5", "node-2"), endpoint("10.244.3.5", "node-3")},
	}}
	l.build()
	before := l.table
	endpoints := func() int { return len(l.table.Entry(there).Frontends[0].Internal.Endpoints) }
	for _, step := range []struct {
		dead []string
		want int
	}{{nil, 2}, {[]string{"node-3"}, 1}, {[]string{"node-2", "node-3"}, 2}, {[]string{"node-3", "node-9"}, 1}, {nil, 2}} {
		facts.Dead = step.dead
		if l.build(); endpoints() != step.want {
			t.Errorf("%d endpoints where %v are dead, want %d", endpoints(), step.dead, step.want)
		}
	}
	if l.table.Entry(elsewhere) != before.Entry(elsewhere) {
		t.Error("a Service without endpoints there was compiled again")
	}
}

// countedReads counts how often the slices of a Service are read.
type countedReads struct {
	*fakeSource
	slices map[api.Name]int
}

func (c countedReads) Slices(n api.Name) []*service.Slice {
	c.slices[n]++
	return c.fakeSource.Slices(n)
}

// A pass reads the objects of a Service once.
func TestReadsOnce(t *testing.T) {
	l, a := newBuild(func() service.Facts { return service.Facts{} })
	c := countedReads{a, map[api.Name]int{}}
	l.cfg.Source = c
	for pass := range 2 {
		one, other := a.set(1), a.set(2)
		clear(c.slices)
		if l.build(); c.slices[one] != 1 || c.slices[other] != 1 {
			t.Errorf("pass %d reads the slices of two Services so often: %v", pass, c.slices)
		}
	}
}
