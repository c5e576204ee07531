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
func newBuild(view func() service.Node) (*Loop, *fakeSource) {
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

// What peers declare dead is left out of the Services that have endpoints there, and no other
// Service is compiled again.
func TestDeadNode(t *testing.T) {
	var node service.Node
	l, a := newBuild(func() service.Node { return node })
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
		node.Dead = step.dead
		if l.build(); endpoints() != step.want {
			t.Errorf("%d endpoints where %v are dead, want %d", endpoints(), step.dead, step.want)
		}
	}
	if l.table.Entry(elsewhere) != before.Entry(elsewhere) {
		t.Error("a Service without endpoints there was compiled again")
	}
}

// large puts a Service that is compiled beside the loop, and lets the loop begin with it.
func large(t *testing.T, view func() service.Node) (*Loop, *fakeSource, api.Name) {
	t.Helper()
	l, a := newBuild(view)
	a.set(1)
	l.build()
	l.carried = l.table // as after a pass
	n := a.huge(2, 3000, 1)
	l.build()
	if l.beside == nil || l.table.Entry(n) != nil {
		t.Fatal("a large Service is not compiled beside the loop")
	}
	return l, a, n
}

// collected waits for what is compiled beside the loop, and builds.
func collected(l *Loop) {
	for l.beside != nil {
		<-l.built
		l.build()
		l.build() // every second one collects
	}
}

// A Service that is deleted while it is compiled beside the loop does not come back, nor does
// what it was replace what it has become.
func TestChangedWhileCompiled(t *testing.T) {
	view := func() service.Node { return service.Node{} }
	l, a, n := large(t, view)
	a.remove(2)
	l.build()
	if collected(l); l.table.Entry(n) != nil {
		t.Error("a Service that was deleted is in the table")
	}

	l, a, n = large(t, view)
	a.set(2)
	l.build()
	if collected(l); len(l.table.Entry(n).Frontends) != 1 {
		t.Errorf("%d frontends, want the one that the Service has now", len(l.table.Entry(n).Frontends))
	}

	l, a, n = large(t, view)
	a.huge(2, 4000, 1)
	l.build()
	if collected(l); len(l.table.Entry(n).Frontends) != 4000 {
		t.Errorf("%d frontends, want 4000", len(l.table.Entry(n).Frontends))
	}
}

// A Service that is deleted, or becomes small, while it waits to be compiled beside the loop does not
// stay as it was.
func TestChangedWhileWaiting(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*fakeSource)
		want   int
	}{
		"deleted": {func(a *fakeSource) { a.remove(3) }, 0},
		"small":   {func(a *fakeSource) { a.set(3) }, 1},
	} {
		l, a, _ := large(t, func() service.Node { return service.Node{} })
		n := a.huge(3, 3000, 1)
		l.build()
		if collected(l); len(l.table.Entry(n).Frontends) != 3000 {
			t.Fatalf("%d frontends, want 3000", len(l.table.Entry(n).Frontends))
		}
		other := &compilation{done: make(chan []*service.Entry, 1)} // takes long
		l.beside = other
		a.huge(3, 4000, 1)
		l.build()
		if len(l.backlog) != 1 {
			t.Fatalf("%v wait, want %v", l.backlog, n)
		}
		c.change(a)
		l.build()
		other.done <- nil
		l.built <- struct{}{}
		frontends := 0
		if collected(l); l.table.Entry(n) != nil {
			frontends = len(l.table.Entry(n).Frontends)
		}
		if frontends != c.want || len(l.backlog) > 0 {
			t.Errorf("%s: %d frontends, want %d; %v wait", what, frontends, c.want, l.backlog)
		}
	}
}

// What is compiled beside the loop for a view that is another meanwhile is compiled again.
func TestViewedWhileCompiled(t *testing.T) {
	limit := 0
	l, _, n := large(t, func() service.Node { return service.Node{Limits: service.Limits{Ports: limit}} })
	limit = 100
	l.build()
	if collected(l); len(l.table.Entry(n).Frontends) != 100 {
		t.Errorf("%d frontends, want 100", len(l.table.Entry(n).Frontends))
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

// A pass reads what a small Service is made of once: that which it weighs is what it compiles.
func TestReadsOnce(t *testing.T) {
	l, a := newBuild(func() service.Node { return service.Node{} })
	c := countedReads{a, map[api.Name]int{}}
	l.cfg.Source = c
	for pass := range 2 {
		one, other := a.set(1), a.set(2)
		clear(c.slices)
		if l.build(); c.slices[one] != 1 || c.slices[other] != 1 {
			t.Errorf("pass %d reads the slices of two Services so often: %v", pass, c.slices)
		}
		l.carried = l.table // from now on large Services wait
	}
}
