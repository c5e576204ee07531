package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// numbered returns the i-th Service: a ClusterIP with eps endpoints.
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
		Proto: api.TCP, ClusterIP: true, Service: api.PortName{Name: n, Port: "http"}, Internal: r, External: r,
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

var sizes = []int{1000, 10000, 50000}

// BenchmarkCold measures the first Sync into an empty kernel. The limit is 1 s at 10,000 Services.
func BenchmarkCold(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			table := cluster(n).Table(settings())
			for b.Loop() {
				d := open(b)
				sync(b, d, table)
				b.StopTimer()
				if err := d.Cleanup(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkOneMore adds one Service to n Services. It measures from the call of Sync to the kernel's answer. The limit
// is 10 ms at 10,000 Services.
func BenchmarkOneMore(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			builder, d := cluster(n), open(b)
			sync(b, d, builder.Table(settings()))
			i := n
			for b.Loop() {
				builder.Set(numbered(i, 2))
				sync(b, d, builder.Table(settings()))
				i++
			}
		})
	}
}

// BenchmarkOneEndpoint changes the number of endpoints of one Service among n.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			builder, d := cluster(n), open(b)
			sync(b, d, builder.Table(settings()))
			i := 0
			for b.Loop() {
				builder.Set(numbered(n/2, 2+i%2))
				sync(b, d, builder.Table(settings()))
				i++
			}
		})
	}
}

// BenchmarkColdAffinity is BenchmarkCold with session affinity on every Service.
func BenchmarkColdAffinity(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			builder := service.NewBuilder()
			for i := range n {
				e := numbered(i, 2)
				e.Frontends[0].Affinity = 3 * time.Hour
				builder.Set(e)
			}
			table := builder.Table(settings())
			for b.Loop() {
				d := open(b)
				sync(b, d, table)
				b.StopTimer()
				if err := d.Cleanup(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkTurns changes the endpoints of one Service among n with round robin, which have dedicated chains.
func BenchmarkTurns(b *testing.B) {
	for _, n := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			builder, d := service.NewBuilder(), open(b)
			turns := func(i, eps int) {
				e := numbered(i, eps)
				e.Frontends[0].Balance = service.RoundRobin
				builder.Set(e)
			}
			for i := range n {
				turns(i, 2)
			}
			sync(b, d, builder.Table(settings()))
			i := 0
			for b.Loop() {
				turns(n/2, 3+i%2)
				sync(b, d, builder.Table(settings()))
				i++
			}
		})
	}
}

// TestMemory limits the memory of the datapath for a Service with two endpoints. The memory of the Table does not
// count. 42 of the bytes are for the address in the set of ClusterIPs.
func TestMemory(t *testing.T) {
	testnet.Enter(t)
	const n = 10000
	table := cluster(n).Table(settings())
	testnet.HeapAtMost(t, n, 335, func() any {
		d := open(t)
		sync(t, d, table)
		return d
	})
}

// BenchmarkRestart measures the first Adopt and Sync of a process that finds everything in place.
func BenchmarkRestart(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testnet.Enter(b)
			table := cluster(n).Table(settings())
			sync(b, open(b), table)
			for b.Loop() {
				d := open(b)
				if _, err := d.Adopt(b.Context()); err != nil { // like internal/proxy
					b.Fatal(err)
				}
				sync(b, d, table)
				d.Close()
			}
		})
	}
}

func open(t testing.TB) *Datapath {
	t.Helper()
	d, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func sync(t testing.TB, d *Datapath, table *service.Table) {
	t.Helper()
	if _, err := d.Sync(context.Background(), table); err != nil {
		t.Fatal(err)
	}
}
