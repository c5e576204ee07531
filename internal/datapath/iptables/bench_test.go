package iptables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// numbered returns the i-th Service, a ClusterIP with eps endpoints.
func numbered(i, eps int) *service.Entry {
	r := &service.Route{Masquerade: service.MasqueradeOffCluster}
	for e := range eps {
		r.Endpoints = append(r.Endpoints, service.Endpoint{
			Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 | byte(i>>16), byte(i >> 8), byte(i)}), uint16(8000+e)),
			Local: i < 100,
		})
	}
	n := api.Name{Namespace: "default", Name: fmt.Sprintf("service-%05d", i)}
	return &service.Entry{Name: n, Frontends: []*service.Frontend{{
		Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 64 | byte(i>>16), byte(i >> 8), byte(i)}), 80),
		Proto: api.TCP, Service: api.PortName{Name: n, Port: "http"}, Internal: r, External: r, ClusterIP: true,
	}}}
}

func settings() service.Settings {
	return service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	}
}

// cluster returns a builder with n Services of 2 endpoints each.
func cluster(n int) *service.Builder {
	b := service.NewBuilder()
	for i := range n {
		b.Set(numbered(i, 2))
	}
	return b
}

// each runs a benchmark for both variants, with 10,000 Services in a new namespace.
func each(b *testing.B, f func(b *testing.B, v Variant, n int)) {
	for _, v := range []Variant{NFT, Legacy} {
		b.Run(v.String(), func(b *testing.B) {
			testnet.Enter(b)
			f(b, v, 10000)
		})
	}
}

// BenchmarkCold is a first Sync into an empty kernel. kube-proxy took 41 s.
func BenchmarkCold(b *testing.B) {
	each(b, func(b *testing.B, v Variant, n int) {
		table := cluster(n).Table(settings())
		for b.Loop() {
			d := open(b, v)
			sync(b, d, table)
			b.StopTimer()
			if err := d.Cleanup(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkChange changes one endpoint of one Service among 10,000, then adds and removes a Service. The aim with nft
// is 150 ms for an endpoint. kube-proxy takes 0.9 to 1.7 s.
func BenchmarkChange(b *testing.B) {
	each(b, func(b *testing.B, v Variant, n int) {
		builder, d := cluster(n), open(b, v)
		sync(b, d, builder.Table(settings()))
		var spent [3]time.Duration
		rounds := 0
		for b.Loop() {
			step := func(i int, change func()) {
				change()
				table := builder.Table(settings())
				start := time.Now()
				sync(b, d, table)
				spent[i] += time.Since(start)
			}
			rounds++
			step(0, func() { builder.Set(numbered(n/2, 2+rounds%2)) })
			step(1, func() { builder.Set(numbered(n+1, 2)) })
			step(2, func() { builder.Delete(numbered(n+1, 2).Name) })
		}
		for i, what := range []string{"endpoint", "add", "remove"} {
			b.ReportMetric(float64(spent[i].Milliseconds())/float64(rounds), "ms/"+what)
		}
	})
}

// BenchmarkRestart is the first Sync of a process that finds everything in place.
func BenchmarkRestart(b *testing.B) {
	each(b, func(b *testing.B, v Variant, n int) {
		table := cluster(n).Table(settings())
		sync(b, open(b, v), table)
		for b.Loop() {
			sync(b, open(b, v), table)
		}
	})
}

// BenchmarkAdopt is a restart that finds everything in place: Adopt and the first Sync. It prints the CPU time of the
// agent and its programs, which depends less on the machine's load.
func BenchmarkAdopt(b *testing.B) {
	each(b, func(b *testing.B, v Variant, n int) {
		table := cluster(n).Table(settings())
		sync(b, open(b, v), table)
		start, rounds := cpuTime(), 0
		for b.Loop() {
			d := open(b, v)
			if _, err := d.Adopt(b.Context()); err != nil {
				b.Fatal(err)
			}
			sync(b, d, table)
			rounds++
		}
		b.ReportMetric((cpuTime()-start).Seconds()/float64(rounds), "cpu-s/op")
	})
}

// cpuTime is the CPU time of this process and of all ended programs that it ran.
func cpuTime() time.Duration { return cpuOf(unix.RUSAGE_SELF) + cpuOf(unix.RUSAGE_CHILDREN) }

// cpuOf is the CPU time of this process (RUSAGE_SELF), or of ended programs that it ran.
func cpuOf(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func open(t testing.TB, v Variant) *Datapath {
	t.Helper()
	d, err := New(Config{Variant: v})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func sync(t testing.TB, d *Datapath, table *service.Table) {
	t.Helper()
	if _, err := d.Sync(t.Context(), table); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkNotice finds and repairs another program's changes among 10,000 Services. The program adds a rule of its
// own, deletes one of our rules, and flushes table nat.
func BenchmarkNotice(b *testing.B) {
	testnet.Enter(b)
	d, table := open(b, NFT), cluster(10000).Table(settings())
	sync(b, d, table)
	spent := map[string]time.Duration{}
	rounds := 0
	for b.Loop() {
		rounds++
		for _, what := range []struct{ name, command string }{
			{"others", "iptables-nft -t nat -A POSTROUTING -s 192.0.2.1 -j MASQUERADE"},
			{"one", "iptables-nft -t nat -D KUBE-SERVICES 2"},
			{"flush", "iptables-nft -t nat -F"},
		} {
			other(b, what.command)
			start := time.Now()
			if check(b, d) != (what.name == "others") {
				b.Fatalf("after %s", what.command)
			}
			spent[what.name] += time.Since(start)
			start = time.Now()
			sync(b, d, table)
			spent[what.name+"-back"] += time.Since(start)
		}
	}
	for what, took := range spent {
		b.ReportMetric(float64(took.Milliseconds())/float64(rounds), "ms/"+what)
	}
}

// BenchmarkList changes one endpoint of a large Service among 1,000 Services. It prints the CPU time of the agent and
// of its programs.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{100, 1000, 5000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			builder, d := cluster(1000), open(b, NFT)
			large := func(without int) {
				e := numbered(2000, 0)
				for i := range n {
					if i != without {
						at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 80)
						e.Frontends[0].Internal.Endpoints = append(e.Frontends[0].Internal.Endpoints, service.Endpoint{Addr: at})
					}
				}
				builder.Set(e)
				sync(b, d, builder.Table(settings()))
			}
			large(-1)
			own, others, rounds := cpuOf(unix.RUSAGE_SELF), cpuOf(unix.RUSAGE_CHILDREN), 0
			for b.Loop() {
				large(rounds * 37 % n)
				rounds++
			}
			b.ReportMetric(float64((cpuOf(unix.RUSAGE_SELF)-own).Microseconds())/1000/float64(rounds), "agent-cpu-ms/op")
			b.ReportMetric(float64((cpuOf(unix.RUSAGE_CHILDREN)-others).Microseconds())/1000/float64(rounds), "programs-cpu-ms/op")
		})
	}
}
