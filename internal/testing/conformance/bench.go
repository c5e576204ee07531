package conformance

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Numbers of connections for each cell of Bench's table.
const (
	benchAlone    = 3000 // connections one after the other, for the latency
	benchTogether = 6000 // connections of benchWorkers at once, for the rate
	benchWorkers  = 8
)

// Bench prints one table. Each mechanism, and a direct connection to a pod, has a row: how long a pod of the node takes
// to connect to three endpoints through a ClusterIP, one connection at a time, and how many connections a second eight
// workers make. The columns are for 10 and 10,000 Services.
func Bench(b *testing.B, modes map[string]Open) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mode\tServices\tp50 µs\tp99 µs\tconnections/s\t")
	row := func(name string, services int, client *testnet.Host, to netip.AddrPort) {
		alone, _ := connections(b, client, to, 1, benchAlone)
		slices.Sort(alone)
		_, took := connections(b, client, to, benchWorkers, benchTogether)
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.0f\t\n", name, services, us(alone[len(alone)/2]), us(alone[len(alone)*99/100]), benchTogether/took.Seconds())
	}
	for b.Loop() {
		for i, name := range slices.Sorted(maps.Keys(modes)) {
			for _, services := range []int{10, 10000} {
				s := newSuite(b, modes[name])
				r := sixRig(b, s)
				report(b, r.sync(tableOf(crowd(services)...)))
				client := r.hosts[scenario.World.Pod.V4]
				if i == 0 && services == 10 {
					row("(direct)", 0, client, six()[0].Addr)
				}
				row(name, services, client, netip.MustParseAddrPort("10.96.0.1:80"))
			}
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of all rows has no meaning
	_ = w.Flush()
	fmt.Print("\n" + out.String())
}

// crowd returns the measured Service among n Services.
func crowd(n int) []*service.Frontend {
	all := []*service.Frontend{web("measured", "10.96.0.1:80", api.TCP, 0, 1, 2)}
	for i := range n - 1 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 100, byte(i / 250), byte(1 + i%250)}), 80)
		all = append(all, web(fmt.Sprintf("other-%d", i), at.String(), api.TCP, i%6, (i+1)%6))
	}
	return all
}

// connections opens n connections by a number of workers. It returns the duration of each and of all.
func connections(b *testing.B, client *testnet.Host, to netip.AddrPort, workers, n int) (each []time.Duration, all time.Duration) {
	var wait sync.WaitGroup
	lists := make([][]time.Duration, workers)
	began := time.Now()
	for i := range workers {
		wait.Go(func() {
			report(b, client.Do(func() error {
				for range n / workers {
					start := time.Now()
					c, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
					if err != nil {
						return err
					}
					lists[i] = append(lists[i], time.Since(start))
					_ = c.(*net.TCPConn).SetLinger(0)
					_ = c.Close()
				}
				return nil
			}))
		})
	}
	wait.Wait()
	return slices.Concat(lists...), time.Since(began)
}
