package layer2

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/service"
)

// TestLocal: with externalTrafficPolicy: Local a node has the address if it has a ready endpoint and its kernel serves
// it. It gives the address up when its last endpoint starts to terminate and another node is ready, and keeps it while
// no other node is.
func TestLocal(t *testing.T) {
	const port = 30123
	ready := func(node string) service.SliceEndpoint {
		return service.SliceEndpoint{Node: node, Ready: true, Serving: true}
	}
	ending := func(node string) service.SliceEndpoint {
		return service.SliceEndpoint{Node: node, Serving: true, Terminating: true}
	}
	for name, c := range map[string]struct {
		endpoints       []service.SliceEndpoint
		served, held    bool
		contested, want bool
		leaves          bool // keeps it only for leaveTime
	}{
		"ready and served":                       {endpoints: []service.SliceEndpoint{ready("node-1")}, served: true, want: true},
		"ready, and not in the kernel":           {endpoints: []service.SliceEndpoint{ready("node-1")}},
		"no endpoint here":                       {endpoints: []service.SliceEndpoint{ready("node-2")}, served: true},
		"held, the last one terminates":          {endpoints: []service.SliceEndpoint{ending("node-1"), ready("node-2")}, served: true, held: true, want: true, leaves: true},
		"and the next owner asks for it":         {endpoints: []service.SliceEndpoint{ending("node-1"), ready("node-2")}, served: true, held: true, contested: true},
		"not held, the last one terminates":      {endpoints: []service.SliceEndpoint{ending("node-1"), ready("node-2")}, served: true},
		"the last one of all terminates":         {endpoints: []service.SliceEndpoint{ending("node-1")}, served: true, held: true, want: true},
		"the last one is gone":                   {endpoints: []service.SliceEndpoint{{Node: "node-1"}}, served: true, held: true},
		"held, and the kernel serves it no more": {endpoints: []service.SliceEndpoint{ready("node-1")}, held: true, want: true, leaves: true},
	} {
		in := world{Addrs: vips[:1], Nodes: []announce.Node{{Name: "node-1"}, {Name: "node-2"}}}.input()
		in.Services[0].Local, in.Services[0].HealthCheckNodePort = true, port
		in.Endpoints = func(api.Name) announce.Endpoints {
			return announce.EndpointsOf([]*service.Slice{{Endpoints: c.endpoints}})
		}
		forwarding := newForwarding(nil)
		v := claimView{
			self: "node-1", forwarding: &forwarding, decisions: announce.Decide(in), granted: func(netip.Addr) bool { return c.held },
			contested: map[netip.Addr]bool{vips[0]: c.contested}, leavingSince: map[netip.Addr]time.Time{}, now: time.Now(),
			served: func(p uint16) bool { return p == port && c.served }, unserved: map[netip.Addr]uint16{},
		}
		asks := func() bool { all, _ := v.claims(); return slices.Contains(all, vips[0]) }
		refusals := newRefusals()
		refuses := func(after time.Duration) bool {
			refusals.keep("node-1", nil, v.unserved, v.now.Add(after))
			return strings.Contains(refusals.all[vips[0]].Reason, "does not confirm at port 30123 (healthCheckNodePort)")
		}
		if got := asks(); got != c.want {
			t.Errorf("%s: asks for the address: %v, want %v", name, got, c.want)
		}
		ready := c.endpoints[0].Ready && c.endpoints[0].Node == "node-1"
		if at, later := refuses(0), refuses(unservedPatience); at || later != (ready && !c.served) {
			t.Errorf("%s: refuses the address: %v, and later %v", name, at, later)
		}
		v.now = v.now.Add(leaveTime)
		if got := asks(); got != (c.want && !c.leaves) {
			t.Errorf("%s: still asks for the address when nobody took it over in time: %v", name, got)
		}
	}
}

// TestHealth: the proxy's answer at the healthCheckNodePort is known soon.
func TestHealth(t *testing.T) {
	var serves atomic.Bool
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !serves.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer proxy.Close()
	at := netip.MustParseAddrPort(proxy.Listener.Addr().String())
	c := NewHealth()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	c.Set(at.Addr(), map[uint16]bool{at.Port(): true})
	for _, want := range []bool{true, false} {
		serves.Store(want)
		for end := time.Now().Add(60 * time.Second); c.Served(at.Port()) != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is served: %v, want %v", !want, want)
			}
		}
	}
	c.Set(at.Addr(), nil)
	if c.Served(at.Port()) {
		t.Error("a port that is not asked any more is served")
	}
}
