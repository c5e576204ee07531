package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// A restlessRIB changes its podCIDRs all the time, and counts the writes.
type restlessRIB struct {
	podroutes.Dir
	writes atomic.Int32
}

func (r *restlessRIB) Asked() (bool, error) { return true, nil }
func (r *restlessRIB) SetReceived(all []podroutes.Route) error {
	r.writes.Add(1)
	return nil
}

func (r *restlessRIB) Watch(ctx context.Context, changed func(), _ func(error)) {
	for ; ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
		changed()
	}
}

// restless are objects that change all the time.
type restless struct{ decisions atomic.Int32 }

func (*restless) Synced() <-chan struct{}         { c := make(chan struct{}); close(c); return c }
func (r *restless) Dirty() <-chan struct{}        { return r.Synced() }
func (*restless) Set(netip.Addr, map[uint16]bool) {}
func (*restless) Served(uint16) bool              { return true }
func (r *restless) Changed() <-chan struct{}      { return r.Synced() }
func (r *restless) BGP() announce.BGPInput {
	r.decisions.Add(1)
	return announce.BGPInput{}
}

// TestRestless: Node objects, Services and routers that change all the time do not keep a core busy, here or in the
// agent. A session that ends is handled at once.
func TestRestless(t *testing.T) {
	source, rib := &restless{}, &restlessRIB{}
	s, err := New(Config{
		Log: slog.New(slog.DiscardHandler), Node: "node-1", Source: source, Health: source, Metrics: NewMetrics(prometheus.NewRegistry()), RIB: rib,
		Report: func([]announce.PeerProblem) {}, Announced: func(map[api.Name]Announcement) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
			s.routesChanged()
		}
	}()
	<-time.After(2 * time.Second)
	if n := source.decisions.Load(); n < 10 || n > 21 {
		t.Errorf("%d decisions in 2 s, want 10 to 21", n)
	}
	if n := rib.writes.Load(); n < 10 || n > 21 {
		t.Errorf("%d writes of the routers' routes in 2 s, want 10 to 21", n)
	}
	const sessions = 20
	n := source.decisions.Load()
	for range sessions {
		s.sessionChanged()
		<-time.After(20 * time.Millisecond)
	}
	if n = source.decisions.Load() - n; n < sessions-2 {
		t.Errorf("%d decisions for %d sessions that ended, want one each", n, sessions)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
