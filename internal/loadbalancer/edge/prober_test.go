package edge

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// TestTenantsShareProbes: a tenant with many Services under externalTrafficPolicy Local, whose checks answer or stay
// silent, does not delay the detection of a dead node for another tenant's Service, or for the Services that ask the
// node's proxy.
func TestTenantsShareProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent time.Duration // before each answer about the greedy tenant's Services
	}{{"answered", 0}, {"silent", time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			checks := Checks{Interval: 200 * time.Millisecond, Timeout: 100 * time.Millisecond, Healthy: 2, Unhealthy: 2, PerSecond: 500}
			node := netip.MustParseAddr("10.0.0.1")
			victim, proxy := Target{netip.AddrPortFrom(node, 32000), "/"}, Target{netip.AddrPortFrom(node, 10256), "/healthz"}
			want := map[Target]string{victim: "victim", proxy: ""}
			for i := range 3000 {
				want[Target{netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(20000+i)), "/"}] = "evil"
			}
			var dead atomic.Bool
			p := NewProber(checks, func(ctx context.Context, target Target) service.ProbeResult {
				if target.At.Addr() != node {
					select {
					case <-ctx.Done():
					case <-time.After(c.silent):
					}
					return service.ProbeResult{State: service.Passing}
				}
				if dead.Load() {
					return service.ProbeResult{State: service.Silent}
				}
				return service.ProbeResult{State: service.Passing}
			}, nil)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- p.Run(ctx) }()
			defer func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			p.Set(want)
			state := func(s service.ProbeState) func() bool {
				return func() bool { return p.Result(victim).State == s && p.Result(proxy).State == s }
			}
			within(t, 30*time.Second, "the node to answer", state(service.Passing))
			dead.Store(true)
			within(t, 2*time.Second, "the node to be dead", state(service.Silent))
		})
	}
}

// within polls cond.
func within(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}
