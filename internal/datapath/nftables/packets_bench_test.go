package nftables_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
)

// BenchmarkAffinityPackets measures a connect, and a packet of an open connection, in three cases that take turns: no
// Service has affinity, another Service has affinity, the Service has affinity. p1, the fastest hundredth, is the least
// disturbed.
func BenchmarkAffinityPackets(b *testing.B) {
	const connects, exchanges, rounds = 400, 4000, 10
	n := newNode(b, nftables.Config{}, 1)
	plain, affine := n.frontend("10.96.0.1:80", api.TCP, service.Random), n.frontend("10.96.0.2:81", api.TCP, service.Random)
	affine.Affinity = 3 * time.Hour
	took := map[string][]time.Duration{}
	client := n.clients[0]
	measure := func(what string, many int, f func() error) {
		for range many {
			start := time.Now()
			if err := f(); err != nil {
				b.Fatal(err)
			}
			took[what] = append(took[what], time.Since(start))
		}
	}
	for b.Loop() {
		for range rounds {
			for _, c := range []struct {
				name string
				all  []*service.Frontend
				to   netip.AddrPort
			}{
				{"no affinity", []*service.Frontend{plain}, plain.Addr},
				{"beside affinity", []*service.Frontend{plain, affine}, plain.Addr},
				{"with affinity", []*service.Frontend{plain, affine}, affine.Addr},
			} {
				n.sync(c.all...)
				err := client.Do(func() error {
					measure(c.name+": connect", connects, func() error {
						conn, err := net.Dial("tcp", c.to.String())
						if err == nil {
							err = conn.Close()
						}
						return err
					})
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				conn, err := client.Dial("tcp", c.to, patience)
				if err != nil {
					b.Fatal(err)
				}
				measure(c.name+": question and answer", exchanges, func() error { conn.Ask(patience); return nil })
				conn.Close()
			}
		}
	}
	b.ReportMetric(0, "ns/op") // the mean of all cases has no meaning
	names := []string{}
	for what := range took {
		names = append(names, what)
	}
	slices.Sort(names)
	for _, what := range names {
		all := took[what]
		slices.Sort(all)
		fmt.Printf("%-40s p1 %6.2f µs  p50 %6.2f µs\n", what, float64(all[len(all)/100].Nanoseconds())/1e3, float64(all[len(all)/2].Nanoseconds())/1e3)
	}
}
