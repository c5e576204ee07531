package kube

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// city is a cluster with n Services, each with an EndpointSlice.
func city(n int) map[string][]runtime.Object {
	all := cluster()
	all[servicesPath], all[slicesPath] = nil, nil
	for i := range n {
		name := fmt.Sprint("web-", i)
		all[servicesPath] = append(all[servicesPath], versioned(apiService(name, fmt.Sprint("10.96.1.", i)), 1))
		all[slicesPath] = append(all[slicesPath], versioned(apiSlice(name+"-x", name, fmt.Sprint("10.0.0.", i)), 1))
	}
	return all
}

// guarded is a Store that has read a cluster and doubts lists for a time.
type guarded struct {
	*source
	server *streamServer
	log    *testnet.Log
	events atomic.Int32
}

func newGuarded(t *testing.T, services int, emptyAfter time.Duration) *guarded {
	t.Helper()
	g := &guarded{server: newStreamServer(t, city(services)), log: &testnet.Log{}}
	client, err := Connect(Connection{Master: g.server.URL, ContentType: "application/json", QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	g.source = newSource(Config{
		Log: slog.New(slog.NewTextHandler(g.log, nil)), Client: client, NodeName: "node-1", EmptyAfter: emptyAfter,
		Problem: func(api.Name, api.Problem) { g.events.Add(1) },
	})
	for _, f := range []*guard{g.services.guard, g.slices.guard} {
		f.pause = time.Millisecond
	}
	runUntilEnd(t, g)
	g.has(t, services)
	return g
}

// has waits until there are n Services and EndpointSlices.
func (g *guarded) has(t *testing.T, n int) {
	t.Helper()
	until(t, fmt.Sprint(n, " Services"), func() bool { return g.services.Len() == n && g.slices.Len() == n })
}

// doubts waits until lists are doubted, and returns the number of kept objects.
func (g *guarded) doubts(t *testing.T) (services int) {
	t.Helper()
	until(t, "two loud lines", func() bool { return g.log.Count("they are kept") == 2 })
	until(t, "an event for each kind", func() bool { return g.events.Load() == 2 })
	until(t, "the metric", func() bool {
		services = int(gauges(t, g.source, "fairway_api_kept_objects")["services"])
		return services > 0
	})
	return services
}

const never = 24 * time.Hour

// TestEmptyList: an API server suddenly returns an empty list. The objects are kept, and objects that return count at
// once.
func TestEmptyList(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, 20, never)
	g.server.change(city(0))
	if n := g.doubts(t); n != 20 || g.services.Len() != 20 || g.slices.Len() != 20 {
		t.Errorf("%d Services kept, there are %d and %d slices", n, g.services.Len(), g.slices.Len())
	}
	g.server.mu.Lock()
	g.server.first = city(18)
	g.server.mu.Unlock()
	g.has(t, 18)
	if n := gauges(t, g.source, "fairway_api_kept_objects")["services"]; n != 0 {
		t.Errorf("metrics: %v Services are kept", n)
	}
}

// TestPartialList: a list lacks most objects. Its new objects count at once.
func TestPartialList(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, 20, never)
	part := city(3)
	part[servicesPath] = append(part[servicesPath], versioned(apiService("new", "10.96.2.1"), 2))
	g.server.change(part)
	g.doubts(t)
	until(t, "the new Service", func() bool { _, ok := g.Service(svcName("new")); return ok })
	if n := g.services.Len(); n != 21 {
		t.Errorf("%d Services, want 21", n)
	}
}

// TestConfirmedList: objects that are missing for the configured time are removed.
func TestConfirmedList(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, 20, 200*time.Millisecond)
	g.server.change(city(0))
	g.has(t, 0)
	if n := g.log.Count("they are kept"); n != 2 {
		t.Errorf("%d loud lines, want 2", n)
	}
	until(t, "the other lines", func() bool { return g.log.Count("they are removed now") == 2 })
}

// TestOnlyOwnObjectLeft: an API server that has lost the storage of a small cluster still has its own objects. The node
// keeps the other objects.
func TestOnlyOwnObjectLeft(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, 4, never)
	g.server.change(city(1))
	if n := g.doubts(t); n != 3 || g.services.Len() != 4 || g.slices.Len() != 4 {
		t.Errorf("%d Services kept, there are %d and %d slices", n, g.services.Len(), g.slices.Len())
	}
}

// TestDeletesAreBelieved: deletions in a watch count at once.
func TestDeletesAreBelieved(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, 20, never)
	for i := range 20 {
		g.server.later[servicesPath] <- watchEvent{Type: "DELETED", Object: versioned(apiService(fmt.Sprint("web-", i), ""), 200+i)}
	}
	until(t, "no Service", func() bool { return g.services.Len() == 0 })
	if n := g.log.Count("they are kept"); n != 0 {
		t.Errorf("%d loud lines", n)
	}
}
