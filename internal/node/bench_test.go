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

// BenchmarkPodToPod measures pods of two nodes: throughput of one TCP connection, and the round
// trip of a byte. "by hand" is the tunnel as flannel makes it, without rules of ours.
func BenchmarkPodToPod(b *testing.B) {
	for _, how := range []string{"routes", "vxlan", "by hand"} {
		c := newCluster(b, 2, v4)
		for _, m := range c.machines {
			if how == "vxlan" {
				m.config.Way = WayVXLAN
			} else if how == "by hand" {
				m.config.MTU = 1400 // that of the tunnel
			}
			m.restart()
		}
		c.sync()
		from, to := c.machines[0].newPod(), c.machines[1].newPod()
		to.echo()
		for i, m := range c.machines {
			if how == "by hand" {
				other := 2 - i
				m.run(fmt.Sprintf(`nft delete table inet fairway-pods; ip link add flannel.1 mtu 1400 address 02:00:00:00:00:0%d type vxlan id 1 dstport 8472 local 192.0.2.%d nolearning; ip link set flannel.1 up
					ip addr add 10.244.%d.0/32 dev flannel.1; ip route replace 10.244.%d.0/24 via 10.244.%d.0 dev flannel.1 onlink proto 70
					ip neigh add 10.244.%d.0 lladdr 02:00:00:00:00:0%d dev flannel.1 nud permanent; bridge fdb add 02:00:00:00:00:0%d dev flannel.1 dst 192.0.2.%d`,
					i+1, i+1, i+1, other, other, other, other, other, other))
			}
		}
		k := newTalk(how, from, to.addrs[0])
		b.Run(how+"/roundtrip", func(b *testing.B) {
			one := []byte{1}
			for b.Loop() {
				if _, err := k.tcp.Write(one); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(k.tcp, one); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(how+"/echo", func(b *testing.B) { // both directions at once
			b.SetBytes(1 << 20)
			much, back := make([]byte, 1<<20), make([]byte, 1<<20)
			for b.Loop() {
				go k.tcp.Write(much)
				if _, err := io.ReadFull(k.tcp, back); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
