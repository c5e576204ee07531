package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
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

// huge adds a Service with the given number of ports. Its slices have the given number of endpoints.
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

// hugeWith is huge with a change of the Service before it is added.
func (a *fakeSource) hugeWith(i, ports, endpoints int, change func(*service.Service, *service.Slice)) api.Name {
	n := a.huge(i, ports, endpoints)
	svc, _ := a.Service(n)
	slice := a.Slices(n)[0]
	if change != nil {
		change(svc, slice)
	}
	a.put(svc, slice)
	return n
}

// greedy returns functions that add Services at the limits, one for each kind of object that can be large.
func greedy(limits service.Limits) map[string]func(a *fakeSource, i int) api.Name {
	kind := func(ports, endpoints int, change func(*service.Service, *service.Slice)) func(*fakeSource, int) api.Name {
		return func(a *fakeSource, i int) api.Name { return a.hugeWith(i, ports, endpoints, change) }
	}
	maglev := func(svc *service.Service, _ *service.Slice) { svc.Balanced, svc.Balance = true, service.Maglev }
	weights := func(step int) func(*service.Service, *service.Slice) {
		return func(svc *service.Service, s *service.Slice) {
			svc.Weighted = true
			for k := range s.Endpoints {
				s.Endpoints[k].HasWeight, s.Endpoints[k].Weight = true, uint16(1+step*k)
			}
		}
	}
	external := func(n int) func(*service.Service, *service.Slice) {
		return func(svc *service.Service, _ *service.Slice) {
			ip := svc.ClusterIPs[0].As4()
			for k := range n {
				svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, ip[3], byte(k >> 8), byte(k)}))
			}
		}
	}
	return map[string]func(a *fakeSource, i int) api.Name{
		"ports":       kind(60_000, 1, external(1)),
		"frontends":   kind(limits.Ports, limits.Slots/limits.Frontends, external(1)),
		"endpoints":   kind(1, limits.Endpoints, nil),
		"lists":       kind(1, limits.Endpoints, external(limits.Slots/limits.Endpoints-1)),
		"addresses":   kind(1, limits.Slots/(limits.ExternalAddresses+1), external(limits.ExternalAddresses)),
		"affinity":    kind(1, limits.Endpoints, func(svc *service.Service, _ *service.Slice) { svc.Affinity = time.Hour }),
		"weights":     kind(limits.Slots/service.MaxShares, 2, weights(4094)),
		"weight list": kind(1, service.MaxShares, weights(1)),
		"maglev":      kind(limits.Slots/251, 30, maglev),
		"maglev list": kind(1, 511, maglev),
		"sources": kind(1, 1, func(svc *service.Service, _ *service.Slice) {
			ip := svc.ClusterIPs[0].As4()
			svc.BalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, ip[3], 0, 1})}
			for k := range limits.SourceRanges {
				svc.Sources = append(svc.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(k >> 14), byte(k >> 6), byte(k << 2)}), 31))
			}
		}),
		"slices": func(a *fakeSource, i int) api.Name {
			name := a.huge(i, 1, 0)
			svc, _ := a.Service(name)
			var all []*service.Slice
			for k := range 100 {
				s := &service.Slice{Name: api.Name{Namespace: "ns", Name: fmt.Sprint("slice-", k)}, Service: name}
				for p := range 20_000 {
					s.Ports = append(s.Ports, service.SlicePort{Name: fmt.Sprint("p", p), Proto: api.TCP, Port: uint16(1 + p)})
				}
				for e := range 1000 {
					s.Endpoints = append(s.Endpoints, service.SliceEndpoint{Addr: addrAt(1000*k + e), Ready: true, Serving: true})
				}
				all = append(all, s)
			}
			a.put(svc, all...)
			return name
		},
	}
}

// A counter is a datapath that counts the writes of each Sync.
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

// newCrowd works in the network namespace of this thread. The mode is nftables, iptables or userspace.
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
		Facts:   func() service.Facts { return service.Facts{Node: service.Node{Name: "n", Limits: limitsOf(mode)}} },
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

// TestWorkOfPasses: one pass carries a Service at the limits together with another Service's change. The limits bound
// its writes.
func TestWorkOfPasses(t *testing.T) {
	limits := service.DefaultLimits()
	for name, one := range greedy(limits) {
		t.Run(name, func(t *testing.T) {
			testnet.Enter(t)
			c := newCrowd(t, "nftables")
			one(c.fakeSource, 0)
			other := c.other()
			if again := c.pass(t.Context(), time.Now()); again > 0 {
				t.Fatal("the pass failed")
			}
			held, err := c.kernel.Adopt(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []api.Name{other, {Namespace: "ns", Name: "svc-0"}} {
				want, e := c.table.Entry(n), held.Table.Entry(n)
				if e == nil || !slices.EqualFunc(want.Frontends, e.Frontends, (*service.Frontend).Equal) {
					t.Errorf("the kernel does not carry Service %v as it is after one pass", n)
				}
			}
			// An element in each slot, and for each frontend at most three and a chain's rules.
			if bound := limits.Slots + 4*limits.Frontends; c.kernel.written > bound {
				t.Errorf("the pass wrote %d elements, want at most %d", c.kernel.written, bound)
			}
		})
	}
}

// BenchmarkDelay measures the longest delay of a change of another Service. It takes the passes of mode nftables that
// add Services at the limits, remove an endpoint from each, and delete them. It prints the longest passes by the clock,
// and the thread's CPU time in them. The CPU time includes the kernel's, and depends less on the machine's load.
func BenchmarkDelay(b *testing.B) { delays(b, "nftables") }

// BenchmarkDelayUserspace is BenchmarkDelay in mode userspace.
func BenchmarkDelayUserspace(b *testing.B) { delays(b, "userspace") }

// BenchmarkDelayIPTables is BenchmarkDelay in mode iptables. There iptables' programs do the writes, so only the time
// by the clock counts.
func BenchmarkDelayIPTables(b *testing.B) { delays(b, "iptables") }

func delays(b *testing.B, mode string) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { delay(b, mode, n) })
	}
}

// limitsOf returns the default limits of an agent in a mode.
func limitsOf(mode string) service.Limits {
	l := service.DefaultLimits()
	if mode == "iptables" {
		l.Endpoints, l.Frontends = 5000, 2000
	}
	return l
}

// delay adds the given number of Services of each kind at once, changes an endpoint of each, and deletes them. Another
// Service changes together with each of these steps.
func delay(b *testing.B, mode string, services int) {
	for name, one := range greedy(limitsOf(mode)) {
		b.Run(name, func(b *testing.B) {
			testnet.Enter(b)
			c := newCrowd(b, mode)
			longest := map[string]time.Duration{}
			pass := func(what string) {
				c.other()
				begin, used := time.Now(), threadTime()
				if again := c.pass(b.Context(), begin); again > 0 {
					b.Fatal("the pass failed")
				}
				c.cfg.Flows.Reconcile(b.Context())
				longest[what+"-ms"] = max(longest[what+"-ms"], time.Since(begin))
				longest[what+"-cpu-ms"] = max(longest[what+"-cpu-ms"], threadTime()-used)
			}
			for b.Loop() {
				for i := range services {
					one(c.fakeSource, i)
				}
				pass("add")
				for i := range services {
					c.loseEndpoint(i)
				}
				pass("change")
				for i := range services {
					c.remove(i)
				}
				pass("remove")
			}
			b.ReportMetric(0, "ns/op")
			for name, d := range longest {
				b.ReportMetric(float64(d.Microseconds())/1000, name)
			}
		})
	}
}

// loseEndpoint removes the last endpoint of a Service of huge.
func (a *fakeSource) loseEndpoint(i int) {
	name := api.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
	svc, _ := a.Service(name)
	var less []*service.Slice
	for _, s := range a.Slices(name) {
		one := *s
		one.Endpoints = s.Endpoints[:len(s.Endpoints)-1]
		less = append(less, &one)
	}
	a.put(svc, less...)
}

// threadTime returns the CPU time of the calling thread, in user space and in the kernel.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
