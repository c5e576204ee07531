package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
)

func addrAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// huge is a Service with so many ports, whose slices have so many endpoints.
func (a *api) huge(i, ports, endpoints int) service.Name {
	name := service.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
	svc := &service.Service{Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}}
	slice := &service.Slice{Name: name, Service: name}
	for k := range ports {
		p := service.Port{Name: fmt.Sprint("p", k), Proto: service.TCP, Port: uint16(1 + k)}
		svc.Ports = append(svc.Ports, p)
		slice.Ports = append(slice.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: p.Port})
	}
	for k := range endpoints {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: addrAt(k), Ready: true, Serving: true})
	}
	a.put(svc, slice)
	return name
}

// A pass takes all small Services that changed, and of large ones a bounded part: whoever
// comes while they are programmed waits for that part alone. In the end all is there.
func TestLargeServicesWait(t *testing.T) {
	h := start(t, nil)
	close(h.api.synced)
	h.pass(t) // empty
	<-h.health.synced
	const large = 4
	for i := range large {
		h.api.huge(100+i, 3000, 2)
	}
	passes, seen := 0, false
	for full := 0; full < large; passes++ {
		if passes == 3 {
			h.api.set(1)
		}
		before := h.done()
		table := h.pass(t)
		if n := len(service.Diff(before, table)); n > stepSize+1 {
			t.Fatalf("pass %d changes %d frontends", passes, n)
		}
		full = 0
		for e := range table.Entries() {
			if e.Name.Name == "svc-1" {
				seen = true
			} else if len(e.Frontends) == 3000 {
				full++
			}
		}
		if passes == 5 && !seen {
			t.Fatal("a small Service waits for large ones")
		}
	}
	if passes < 10 {
		t.Errorf("%d passes, want at least 10", passes)
	}
	<-h.health.synced
	if services, frontends := h.dump().Len(); services != large+1 || frontends != large*3000+1 {
		t.Errorf("the kernel has %d Services and %d frontends", services, frontends)
	}
}

// BenchmarkDelay is how long one pass of mode nftables takes while Services at the limits
// change: so long does a change of another Service wait at most, which comes when a pass has
// just begun. It prints the longest passes, and the CPU time of the thread that works in them,
// the kernel's for it included, which depends less on what else the machine does.
func BenchmarkDelay(b *testing.B) {
	testnet.NeedRoot(b, "makes network namespaces")
	limits := service.DefaultLimits()
	for name, greedy := range map[string]func(a *api, i int) service.Name{
		"frontends": func(a *api, i int) service.Name { return a.huge(i, limits.Ports, 2) },
		"ports":     func(a *api, i int) service.Name { return a.huge(i, 60_000, 1) },
		"endpoints": func(a *api, i int) service.Name { return a.huge(i, limits.Ports, limits.Endpoints/limits.Ports) },
		"one port":  func(a *api, i int) service.Name { return a.huge(i, 1, 1000) },
	} {
		b.Run(name, func(b *testing.B) {
			done := make(chan error, 1)
			go func() {
				runtime.LockOSThread() // and never unlock: the namespace ends with the thread
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					done <- err
					return
				}
				done <- delay(b, limits, greedy)
			}()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func delay(b *testing.B, limits service.Limits, greedy func(*api, int) service.Name) error {
	real, err := nftables.New(nftables.Config{})
	if err != nil {
		return err
	}
	defer real.Close()
	a := newAPI()
	l := New(Config{
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Source: a, Datapath: real,
		View:    func() service.Node { return service.Node{Name: "n", Limits: limits} },
		Health:  newHealth(),
		Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
		Flows:   flow.New(flow.Config{Log: slog.New(slog.DiscardHandler)}),
	})
	ctx := context.Background()
	for i := range 1000 {
		a.set(1000 + i)
	}
	l.pass(ctx, time.Now())
	var passes, worked []time.Duration
	for b.Loop() {
		for i := range 3 { // three of them change at once, and again while they are programmed
			greedy(a, i)
		}
		for more := time.Duration(1); more > 0; {
			begin, used := time.Now(), threadTime()
			a.set(1000 + len(passes)%1000)
			more = l.pass(ctx, begin)
			passes, worked = append(passes, time.Since(begin)), append(worked, threadTime()-used)
		}
		for i := range 3 {
			a.remove(i)
		}
		l.pass(ctx, time.Now())
	}
	for name, all := range map[string][]time.Duration{"ms": passes, "cpu-ms": worked} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, name+"/longest")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, name+"/p99")
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"/median")
	}
	b.ReportMetric(float64(len(passes)), "passes")
	return nil
}

// threadTime is the CPU time of the calling thread, in user space and in the kernel.
func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
