package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func addrAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// huge is a Service with so many ports, whose slices have so many endpoints.
func (a *fakeSource) huge(i, ports, endpoints int) api.Name {
	name := api.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
	svc := &service.Service{Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}}
	slice := &service.Slice{Name: name, Service: name}
	for k := range ports {
		p := service.Port{Name: fmt.Sprint("p", k), Proto: api.TCP, Port: uint16(1 + k)}
		svc.Ports = append(svc.Ports, p)
		slice.Ports = append(slice.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: p.Port})
	}
	for k := range endpoints {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: addrAt(k), Ready: true, Serving: true})
	}
	a.put(svc, slice)
	return name
}

// hugeWith is huge for a Service that is changed before it is put.
func (a *fakeSource) hugeWith(i, ports, endpoints int, change func(*service.Service, *service.Slice)) api.Name {
	n := a.huge(i, ports, endpoints)
	svc, _ := a.Service(n)
	slice := a.Slices(n)[0]
	change(svc, slice)
	a.put(svc, slice)
	return n
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

// greedy are Services at the limits, of each kind of object that can be large.
func greedy(limits service.Limits) map[string]func(a *fakeSource, i int) api.Name {
	return map[string]func(a *fakeSource, i int) api.Name{
		"frontends": func(a *fakeSource, i int) api.Name { return a.huge(i, limits.Ports, 2) },
		"ports":     func(a *fakeSource, i int) api.Name { return a.huge(i, 60_000, 1) },
		"endpoints": func(a *fakeSource, i int) api.Name { return a.huge(i, limits.Ports, limits.Endpoints/limits.Ports) },
		"one port":  func(a *fakeSource, i int) api.Name { return a.huge(i, 1, limits.Endpoints) },
		"weights": func(a *fakeSource, i int) api.Name {
			return a.hugeWith(i, 500, 2, func(svc *service.Service, s *service.Slice) {
				svc.Weighted = true
				for k := range s.Endpoints {
					s.Endpoints[k].HasWeight, s.Endpoints[k].Weight = true, uint16(1+4094*k)
				}
			})
		},
		"one list of weights": func(a *fakeSource, i int) api.Name {
			return a.hugeWith(i, 1, service.MaxShares, func(svc *service.Service, s *service.Slice) {
				svc.Weighted = true
				for k := range s.Endpoints {
					s.Endpoints[k].HasWeight, s.Endpoints[k].Weight = true, uint16(1+k)
				}
			})
		},
		"one table": func(a *fakeSource, i int) api.Name {
			return a.hugeWith(i, 1, 511, func(svc *service.Service, _ *service.Slice) { svc.Balanced, svc.Balance = true, service.Maglev })
		},
		"maglev": func(a *fakeSource, i int) api.Name {
			return a.hugeWith(i, 300, 30, func(svc *service.Service, _ *service.Slice) { svc.Balanced, svc.Balance = true, service.Maglev })
		},
	}
}

// A counter is a datapath that notes how much each Sync writes.
type counter struct {
	datapath.Datapath
	written int // elements and rules of the last Sync
}

func (c *counter) Sync(ctx context.Context, t *service.Table) (datapath.Stats, error) {
	stats, err := c.Datapath.Sync(ctx, t)
	c.written = stats.Added + stats.Deleted
	return stats, err
}

// A crowd is a Loop in mode nftables that carries 1,000 Services, without its goroutine.
type crowd struct {
	*Loop
	*fakeSource
	kernel *counter
	passes int
}

// newCrowd works in the network namespace of this thread, in a mode: nftables, iptables or userspace.
func newCrowd(t testing.TB, mode string) *crowd {
	t.Helper()
	var real datapath.Datapath
	var err error
	switch mode {
	case "userspace":
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		real, err = userspace.New(userspace.Config{})
	case "iptables":
		real, err = iptables.New(iptables.Config{})
	default:
		real, err = nftables.New(nftables.Config{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(real.Close)
	c := &crowd{fakeSource: newAPI(), kernel: &counter{Datapath: real}}
	c.Loop = New(Config{
		Log: slog.New(slog.DiscardHandler), Source: c.fakeSource, Datapath: c.kernel,
		View:    func() service.Node { return service.Node{Name: "n", Limits: limitsOf(mode)} },
		Health:  newHealth(),
		Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: mode}),
		Flows:   flow.New(flow.Config{Log: slog.New(slog.DiscardHandler)}),
	})
	for i := range 1000 {
		c.set(1000 + i)
	}
	c.pass(context.Background(), time.Now())
	return c
}

// other changes another Service, and returns its name.
func (c *crowd) other() api.Name {
	c.passes++
	return c.set(1000 + c.passes%1000)
}

// step runs a pass, and reports whether there is more to do. If nothing is but to wait for what is
// compiled beside the loop, it waits.
func (c *crowd) step(ctx context.Context) (more bool) {
	if c.Loop.pass(ctx, time.Now()) > 0 {
		return true
	}
	if c.beside == nil {
		return false
	}
	<-c.built
	return true
}

// TestWorkOfPasses: while Services at the limits change, each pass programs the other Service
// that changed, and does a bounded work besides: it takes one large Service that was compiled beside the
// loop or as many as are small enough together, or it writes some elements of them, and never much of both.
func TestWorkOfPasses(t *testing.T) {
	limits := service.DefaultLimits()
	limits.Ports, limits.Endpoints = 2000, 10_000 // the rest of the work is more of the same
	for name, one := range greedy(limits) {
		t.Run(name, func(t *testing.T) {
			testnet.Enter(t)
			c := newCrowd(t, "nftables")
			for i := range 3 {
				one(c.fakeSource, i)
			}
			mostWritten, mostBeside := 0, 0
			for more := true; more; {
				small := c.other()
				more = c.step(t.Context())
				if c.beside != nil {
					work := 0
					for n := range c.beside.names {
						work += c.read(n).work()
					}
					if len(c.beside.names) > 1 && work > buildSize {
						t.Errorf("pass %d compiles %d large Services beside it", c.passes, len(c.beside.names))
					}
				}
				if c.large {
					mostBeside = max(mostBeside, c.kernel.written)
				}
				mostWritten = max(mostWritten, c.kernel.written)
				if want, got := c.table.Entry(small), c.Loop.carried.Entry(small); want != got {
					t.Fatalf("pass %d: another Service's change waits: the kernel carries %v, want %v", c.passes, got, want)
				}
			}
			t.Logf("%d passes, which wrote at most %d elements, %d where they compiled a large Service", c.passes, mostWritten, mostBeside)
			bound := 5 * stepSize
			if name == "one table" { // it is written at once
				bound = service.MaglevSlots(511) + stepBeside
			}
			if mostWritten > bound || mostBeside > 8*stepBeside {
				t.Errorf("a pass wrote %d elements; %d beside the compilation of a large Service", mostWritten, mostBeside)
			}
		})
	}
}

// BenchmarkDelay is how long one pass of mode nftables takes while Services at the limits
// change: so long does a change of another Service wait at most, which comes when a pass has
// just begun. It prints the longest passes, and the CPU time of the thread that works in them,
// the kernel's for it included, which depends less on what else the machine does; own is the time by the
// clock in which the thread did not wait for a CPU that others had.
func BenchmarkDelay(b *testing.B) { delay(b, "nftables", 3) }

// BenchmarkDelayUserspace is BenchmarkDelay in mode userspace.
func BenchmarkDelayUserspace(b *testing.B) { delay(b, "userspace", 3) }

// BenchmarkDelayIPTables is BenchmarkDelay in mode iptables, where programs of iptables write: only the time by
// the clock counts.
func BenchmarkDelayIPTables(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { delay(b, "iptables", n) })
	}
}

// limitsOf are the limits that an agent in a mode has by default.
func limitsOf(mode string) service.Limits {
	l := service.DefaultLimits()
	if mode == "iptables" {
		l.Endpoints = 5000
	}
	return l
}

// delay changes so many Services of each kind at once, and again while they are programmed.
func delay(b *testing.B, mode string, services int) {
	for name, one := range greedy(limitsOf(mode)) {
		b.Run(name, func(b *testing.B) {
			testnet.Enter(b)
			c := newCrowd(b, mode)
			var passes, worked, own []time.Duration
			for b.Loop() {
				for i := range services {
					one(c.fakeSource, i)
				}
				for more := true; more; {
					c.other()
					begin, used, queued := time.Now(), threadTime(), runDelay()
					more = c.Loop.pass(b.Context(), begin) > 0
					c.cfg.Flows.Reconcile(b.Context())
					took := time.Since(begin)
					passes, worked, own = append(passes, took), append(worked, threadTime()-used), append(own, took-(runDelay()-queued))
					if !more && c.beside != nil {
						<-c.built
						more = true
					}
				}
				for i := range services {
					c.remove(i)
				}
				c.Loop.pass(b.Context(), time.Now())
			}
			for name, all := range map[string][]time.Duration{"ms": passes, "cpu-ms": worked, "own-ms": own} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, name+"/longest")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, name+"/p99")
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"/median")
			}
			b.ReportMetric(float64(len(passes)), "passes")
		})
	}
}

// threadTime is the CPU time of the calling thread, in user space and in the kernel.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// runDelay is how long the calling thread was ready to run while others ran; 0 if the kernel does not say.
func runDelay() time.Duration {
	text, _ := os.ReadFile("/proc/thread-self/schedstat")
	var ran, waited int64
	_, _ = fmt.Sscan(string(text), &ran, &waited)
	return time.Duration(waited)
}
