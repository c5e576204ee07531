package ebpf_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// BenchmarkWays compares a direct connection, one that nf_tables translates and one that the programs translate, in
// turns. It prints the first percentile in µs: the value that a busy machine changes least.
func BenchmarkWays(b *testing.B) {
	r := newRig(b)
	left := r.front("10.96.0.3:80")
	left.Sources = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	r.sync(r.front(web.String()), left)
	ways := map[string]netip.AddrPort{"direct": r.endpoints[0], "nftables": left.Addr, "ebpf": web}
	connects := map[string][]time.Duration{}
	err := r.client.Do(func() error {
		for range max(b.N, 2000) {
			for name, to := range ways {
				begin := time.Now()
				c, err := dial(to)(&net.Dialer{Timeout: time.Second})
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				connects[name] = append(connects[name], time.Since(begin))
				c.Close()
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for name, all := range connects {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/100].Nanoseconds())/1000, "connect-"+name+"-µs")
	}
}
