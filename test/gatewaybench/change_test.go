package gatewaybench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/gateway/server"
)

// A gatewayHere is a gateway in this process whose routes change.
type gatewayHere struct {
	world    world
	compiler *gateway.Compiler
	server   *server.Server
}

// startHere serves a world, as `fairway gateway` does after it has read all objects. cold is the time from the objects to
// the first answer.
func startHere(t testing.TB, routes, certificates int) (g *gatewayHere, cold time.Duration) {
	cert, key, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	var at candidate
	at.ports(t)
	g = &gatewayHere{world: world{
		HTTP: at.http, HTTPS: at.https, Ingress: at.ingress, Backend: backend(t), GRPC: grpcBackend(t),
		Routes: routes, Certificates: certificates, Cert: cert, Key: key,
	}}
	begin := time.Now()
	if g.server, err = server.New(server.Config{Address: netip.MustParseAddr("127.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	g.compiler = g.world.compiler()
	g.apply(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	k := g.dial(t)
	defer k.Close()
	if code, err := k.get(hostOf(routes-1), small); err != nil || code != 200 {
		t.Fatalf("the first request: %d, %v", code, err)
	}
	return g, time.Since(begin)
}

func (g *gatewayHere) apply(t testing.TB) {
	if err := g.server.Apply(g.compiler.Table(), g.world.endpoints()); err != nil {
		t.Error(err)
	}
	g.compiler.Changes()
}

// A client is a kept connection to the gateway.
type client struct {
	net.Conn
	r *bufio.Reader
}

func (g *gatewayHere) dial(t testing.TB) *client {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", g.world.HTTP))
	if err != nil {
		t.Fatal(err)
	}
	return &client{c, bufio.NewReader(c)}
}

// get sends a request and returns the answer's status.
func (c *client) get(host, path string) (int, error) {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// A traffic counts the requests of clients that ask without a pause for routes that do not change.
type traffic struct {
	sent, failed atomic.Int64
	stop         chan struct{}
	clients      sync.WaitGroup
}

// traffic starts n clients. Each pauses a little between two requests, so that they leave CPU to the changes.
func (g *gatewayHere) traffic(t testing.TB, n int) *traffic {
	l := &traffic{stop: make(chan struct{})}
	for i := range n {
		k := g.dial(t)
		l.clients.Go(func() {
			defer k.Close()
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				l.sent.Add(1)
				if code, err := k.get(hostOf(g.world.Routes-1-i), small); err != nil || code != 200 {
					if l.failed.Add(1) == 1 {
						t.Errorf("the first failed request: %d, %v", code, err)
					}
					if err != nil {
						return
					}
				}
			}
		})
	}
	return l
}

func (l *traffic) end() {
	close(l.stop)
	l.clients.Wait()
}

// A change is how long a change took, and a request without a change right before it.
type change struct{ took, request time.Duration }

// changes changes one route after the other, and returns how long each change took: from Compiler.Set until a request
// is served by the changed rule. A route alternates between a prefix that the request has and another one.
func (g *gatewayHere) changes(t testing.TB, n int) (all []change) {
	k := g.dial(t)
	defer k.Close()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	ask := func(host string, want int) {
		if code, err := k.get(host, small); err != nil || code != want {
			t.Fatalf("%s after %d changes: %d, %v; want %d", host, len(all), code, err, want)
		}
	}
	for i := range n {
		<-tick.C
		prefix, was, want := "/changed", 200, 404
		if i%2 == 1 {
			prefix, was, want = "/", 404, 200
		}
		host := hostOf(i / 2 % (g.world.Routes / 2))
		changed := route(host, prefix, "web", 1)
		var one change
		begin := time.Now()
		ask(host, was)
		one.request = time.Since(begin)
		begin = time.Now()
		g.compiler.Set(changed)
		g.apply(t)
		ask(host, want)
		one.took = time.Since(begin)
		all = append(all, one)
	}
	return all
}

// quantile returns what all but a share of the durations stay below.
func quantile(all []change, q float64, of func(change) time.Duration) time.Duration {
	sorted := make([]time.Duration, len(all))
	for i := range all {
		sorted[i] = of(all[i])
	}
	slices.Sort(sorted)
	return sorted[int(q*float64(len(sorted)-1))].Round(10 * time.Microsecond)
}

func tookOf(c change) time.Duration    { return c.took }
func requestOf(c change) time.Duration { return c.request }

// TestChanges changes routes under traffic.
func TestChanges(t *testing.T) {
	g, _ := startHere(t, 300, 5)
	l := g.traffic(t, 4)
	all := g.changes(t, 200)
	l.end()
	p50 := quantile(all, .5, tookOf)
	t.Logf("%d requests; a change took %v at p50, %v at p99", l.sent.Load(), p50, quantile(all, .99, tookOf))
	if l.failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", l.failed.Load(), l.sent.Load())
	}
	if p50 > 50*time.Millisecond {
		t.Errorf("half of the changes took more than %v", p50)
	}
}

// BenchmarkChanges has 3,000 routes and 500 certificates, and changes 1,000 of the routes under traffic.
func BenchmarkChanges(b *testing.B) {
	for b.Loop() {
		g, cold := startHere(b, 3000, 500)
		before, cpu := heap(), processCPU()
		g.changes(b, 200)
		cpu = (processCPU() - cpu) / 200
		l := g.traffic(b, 8)
		all := g.changes(b, 1000)
		l.end()
		b.Logf("cold start, from the objects to the first answer: %v", cold.Round(time.Millisecond))
		b.Logf("a change, from Compiler.Set to the served request: p50 %v, p99 %v, longest %v",
			quantile(all, .5, tookOf), quantile(all, .99, tookOf), quantile(all, 1, tookOf))
		b.Logf("CPU of a change and two requests, with their client and the garbage collection: %v", cpu.Round(10*time.Microsecond))
		b.Logf("a request alone: p50 %v, p99 %v, longest %v", quantile(all, .5, requestOf), quantile(all, .99, requestOf), quantile(all, 1, requestOf))
		b.Logf("%d requests of other clients meanwhile, %d failed", l.sent.Load(), l.failed.Load())
		b.Logf("heap: %d MB before the changes, %d MB after", before>>20, heap()>>20)
	}
	b.ReportMetric(0, "ns/op") // the time of everything together says nothing
}

// processCPU returns the CPU time of this process.
func processCPU() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// heap returns the bytes of the heap that are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
