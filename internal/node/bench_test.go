package node

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

// pluginsEnv is a directory with the reference plugins bridge and host-local (make bench-podnetwork).
const pluginsEnv = "FAIRWAY_BENCH_PLUGINS"

// BenchmarkPodToPod measures pods of two nodes, and of one: throughput of one TCP connection, and the round trip of a
// byte. "by hand" is the tunnel as flannel makes it, without rules; "by hand, rules" the same with the rules of ours that
// do not depend on the way; "bridge" the reference plugin, with plain routes between nodes and no rules either.
func BenchmarkPodToPod(b *testing.B) {
	for _, how := range []string{"routes", "bridge", "vxlan", "by hand", "by hand, rules"} {
		b.Run(strings.ReplaceAll(how, " ", "_"), func(b *testing.B) {
			c := newCluster(b, 2, v4)
			from, near, far := c.benchPods(b, how)
			measure(b, "nodes=2", newTalk(how, from, far.addrs[0]))
			if how == "routes" || how == "bridge" {
				measure(b, "nodes=1", newTalk(how, from, near.addrs[0]))
			}
		})
	}
}

// benchPods are two pods of the first machine and one of the second. The latter two echo.
func (c *cluster) benchPods(b *testing.B, how string) (from, near, far *pod) {
	for _, m := range c.machines {
		switch how {
		case "vxlan":
			m.config.Way = WayVXLAN
		case "by hand", "by hand, rules":
			m.config.MTU = 1400 // that of the tunnel
		}
		m.restart()
	}
	if how == "bridge" {
		c.bridges(b)
	} else {
		c.sync()
	}
	from, near, far = c.machines[0].newPod(), c.machines[0].newPod(), c.machines[1].newPod()
	near.echo()
	far.echo()
	for i, m := range c.machines {
		if !strings.HasPrefix(how, "by hand") {
			continue
		}
		other := 2 - i
		m.run(fmt.Sprintf(`ip link add flannel.1 mtu 1400 address 02:00:00:00:00:0%d type vxlan id 1 dstport 8472 local 192.0.2.%d nolearning; ip link set flannel.1 up
			ip addr add 10.244.%d.0/32 dev flannel.1; ip route replace 10.244.%d.0/24 via 10.244.%d.0 dev flannel.1 onlink proto 70
			ip neigh add 10.244.%d.0 lladdr 02:00:00:00:00:0%d dev flannel.1 nud permanent; bridge fdb add 02:00:00:00:00:0%d dev flannel.1 dst 192.0.2.%d`,
			i+1, i+1, i+1, other, other, other, other, other, other))
		if how == "by hand" {
			m.run("nft delete table inet fairway-pods")
		}
	}
	return from, near, far
}

// bridges makes nodes of the reference plugins.
func (c *cluster) bridges(b *testing.B) {
	dir := os.Getenv(pluginsEnv)
	if dir == "" {
		b.Skipf("%s is not set: make bench-podnetwork", pluginsEnv)
	}
	for i, m := range c.machines {
		m.config.CNIBinDir = dir
		m.run(fmt.Sprintf("echo 1 > /proc/sys/net/ipv4/ip_forward; ip route add 10.244.%d.0/24 via 192.0.2.%d", 2-i, 2-i))
		err := os.MkdirAll(m.config.CNIConfDir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(m.config.CNIConfDir, configName), fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"bench","plugins":[
				{"type":"bridge","bridge":"cni0","isDefaultGateway":true,"mtu":1450,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.%d.0/24"}]]}}]}`,
				m.config.StateDir, i+1), 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// measure runs both benchmarks over a connection.
func measure(b *testing.B, name string, k *talk) {
	b.Run(name+"/roundtrip", func(b *testing.B) {
		one := []byte{1}
		var all []time.Duration
		for b.Loop() {
			began := time.Now()
			if _, err := k.tcp.Write(one); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(k.tcp, one); err != nil {
				b.Fatal(err)
			}
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "µs/p50")
	})
	b.Run(name+"/echo", func(b *testing.B) { // both directions at once
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

// BenchmarkPodRules measures what the parts of our table cost the round trip of a byte between two pods of a node. The
// rules take turns, and the lowest tenth of all runs counts, which other work on the machine disturbs least.
func BenchmarkPodRules(b *testing.B) {
	const rounds, runs, trips = 20, 100, 50
	c := newCluster(b, 1, dual)
	c.sync()
	m := c.machines[0]
	from, near := m.newPod(), m.newPod()
	near.echo()
	parts := map[string]podsParts{"routes": {}, "vxlan": {tunnel: true}, "wireguard": {encrypt: true}}
	for i, addr := range near.addrs {
		k := newTalk("rules", from, addr)
		took, one := map[string][]time.Duration{}, []byte{1}
		for range rounds {
			for _, how := range []string{"none", "routes", "vxlan", "wireguard"} {
				m.run("nft flush ruleset")
				if p, ok := parts[how]; ok {
					text, err := p.program().Text(podsTable)
					if err != nil {
						b.Fatal(err)
					}
					m.run("nft -f - <<'.'\n" + text + "\n.")
				}
				for range runs {
					began := time.Now()
					for range trips {
						if _, err := k.tcp.Write(one); err != nil {
							b.Fatal(err)
						}
						if _, err := io.ReadFull(k.tcp, one); err != nil {
							b.Fatal(err)
						}
					}
					took[how] = append(took[how], time.Since(began))
				}
			}
		}
		for how, all := range took {
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/10].Nanoseconds())/1000/trips, fmt.Sprintf("µs/IPv%d/%s", 4+2*i, how))
		}
	}
	b.ReportMetric(0, "ns/op")
}
