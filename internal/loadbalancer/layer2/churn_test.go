package layer2

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestMessagesBesideChanges: messages of the election do not wait for more than one change of the Services, however many
// changes there are. Each change writes rules, and a tenant may make one after the other.
func TestMessagesBesideChanges(t *testing.T) {
	testnet.Enter(t)
	f, err := fence.Open(t.Context(), election.DefaultTiming.Grant)
	must(t, err)
	defer f.Close()
	s := New(Config{
		Log: slog.New(slog.DiscardHandler), Node: "node-1", Source: &source{}, Metrics: NewMetrics(prometheus.NewRegistry(), "node-1"),
		Assigned: func(map[api.Name]Assignment) {}, Dead: func([]string) {},
	})
	s.fence = f
	s.net = &transport{inbox: make(chan []byte, inboxSize), peers: map[string]netip.AddrPort{}}
	s.member = election.New(election.Config{Self: "node-1", Timing: election.DefaultTiming, Random: func() uint64 { return 1 }})
	for range 500 {
		s.net.inbox <- []byte("a message")
	}
	ctx, stop := context.WithCancel(t.Context())
	waiting := make(chan int, 1)
	go func() {
		a := netip.MustParseAddr("192.0.2.0")
		for range 4 { // the loop takes the last one after it has carried out two others
			a = a.Next()
			s.readings <- reading{decisions: map[netip.Addr]*announce.Decision{a: {}}}
		}
		waiting <- len(s.net.inbox)
		stop()
	}()
	must(t, s.loop(ctx))
	if n := <-waiting; n > 0 {
		t.Errorf("%d of 500 messages wait after two changes", n)
	}
}
