package node

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"testing"
)

// BenchmarkSync measures a node of a large cluster: everything from nothing,
// nothing to do (what the agent does again and again), and one more peer.
func BenchmarkSync(b *testing.B) {
	for _, count := range []int{100, 5000} {
		var peers []Peer
		for i := range count + 1 {
			peers = append(peers, Peer{
				Name:     fmt.Sprintf("peer-%05d", i),
				Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i / 200), byte(i%200 + 1)})},
				PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i/256), byte(i), 0}), 24)},
			})
		}
		c := newCluster(b, 1, v4)
		m := c.machines[0]
		m.config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
		m.restart()
		m.run("ip route add 198.18.0.0/15 dev eth0")
		b.Run(fmt.Sprintf("peers=%d/cold", count), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if err := m.do(func() error { return m.network.Cleanup(b.Context()) }); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				m.mustSync(peers[:count])
			}
		})
		b.Run(fmt.Sprintf("peers=%d/nothing", count), func(b *testing.B) {
			for b.Loop() {
				m.mustSync(peers[:count])
			}
		})
		b.Run(fmt.Sprintf("peers=%d/one", count), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				m.mustSync(peers[:count+1-i%2])
			}
		})
	}
}
