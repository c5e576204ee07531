package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// BenchmarkSync measures a node of a large cluster: everything from nothing,
// nothing to do (what the agent does again and again), and one more peer.
func BenchmarkSync(b *testing.B) {
	for _, count := range []int{100, 5000} {
		var peers []plan.Peer
		for i := range count + 1 {
			peers = append(peers, plan.Peer{
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

// BenchmarkPodToPod measures pods of one node and of two, in turns, so that other work on the machine disturbs all alike:
// the round trip of a byte over TCP, of which the lowest tenth counts, and what comes back of what is sent to an echo, of
// which the highest does. "bridge" are the reference plugins with plain routes between nodes; "flannel" is its VXLAN: the same
// plugins, its device, and rules as its own; "by hand" is that device between our pods without any rules. "+proxy" has
// the hooks of a Service proxy besides, as each node of a cluster has.
func BenchmarkPodToPod(b *testing.B) {
	var talks []*talk
	for _, how := range []string{"routes", "routes unmasqueraded", "bridge", "bridge masquerading", "vxlan", "flannel", "by hand"} {
		for _, proxy := range []string{"", "+proxy"} {
			c := newCluster(b, 2, v4)
			from, near, far := c.benchPods(b, how, proxy != "")
			if how != "vxlan" && how != "by hand" {
				talks = append(talks, newTalk("one_node/"+strings.ReplaceAll(how, " ", "_")+proxy, from, near.addrs[0]))
			}
			talks = append(talks, newTalk("two_nodes/"+strings.ReplaceAll(how, " ", "_")+proxy, from, far.addrs[0]))
		}
	}
	trips, echoes := map[string][]time.Duration{}, map[string][]time.Duration{}
	const rounds, runs, perRun = 20, 50, 50
	for b.Loop() {
		for range rounds {
			rand.Shuffle(len(talks), func(i, j int) { talks[i], talks[j] = talks[j], talks[i] })
			for _, k := range talks {
				for range runs {
					trips[k.what] = append(trips[k.what], k.bounce(1, perRun)/perRun)
				}
				for range runs / 5 {
					echoes[k.what] = append(echoes[k.what], k.bounce(1<<20, 1))
				}
			}
		}
	}
	for what, all := range trips {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/10].Nanoseconds())/1000, "µs/"+what)
		slices.Sort(echoes[what])
		b.ReportMetric((1<<20)/echoes[what][len(echoes[what])/10].Seconds()/1e6, "MB/s/"+what)
	}
	b.ReportMetric(0, "ns/op")
}

// bounce sends so many bytes, and waits until they have come back, again and again.
func (k *talk) bounce(size, times int) time.Duration {
	much, back := make([]byte, size), make([]byte, size)
	began := time.Now()
	for range times {
		sent := make(chan error, 1)
		if send := func() { _, err := k.tcp.Write(much); sent <- err }; size > 1 {
			go send() // both directions at once
		} else {
			send()
		}
		_, err := io.ReadFull(k.tcp, back)
		if failed := errors.Join(err, <-sent); failed != nil {
			k.t.Fatalf("%s: %v", k.what, failed)
		}
	}
	return time.Since(began)
}

// proxyHooks are those of a Service proxy without Services.
const proxyHooks = `table inet proxy {
	chain prerouting { type nat hook prerouting priority dstnat; }
	chain output { type nat hook output priority -100; }
	chain postrouting { type nat hook postrouting priority srcnat; }
	chain none {
	}
	chain forward {
		type filter hook forward priority filter
		ct state new jump none
	}
}`

// benchPods are two pods of the first machine and one of the second. The latter two echo.
func (c *cluster) benchPods(b *testing.B, how string, proxy bool) (from, near, far *pod) {
	for _, m := range c.machines {
		switch how {
		case "vxlan":
			m.config.Way = plan.WayVXLAN
		case "by hand":
			m.config.MTU = 1400 // that of the tunnel
		case "routes unmasqueraded":
			m.config.NonMasqueradeCIDRs = prefixes("0.0.0.0/0")
		}
		m.restart()
	}
	switch how {
	case "bridge":
		c.bridges(b, 1450, "")
	case "bridge masquerading":
		c.bridges(b, 1450, `"macspoofchk":true,"ipMasq":true,"ipMasqBackend":"nftables",`)
	case "flannel":
		c.bridges(b, 1400, "")
	default:
		c.sync()
	}
	from, near, far = c.machines[0].newPod(), c.machines[0].newPod(), c.machines[1].newPod()
	near.echo()
	far.echo()
	for i, m := range c.machines {
		if how == "by hand" {
			m.run("nft delete table inet fairway-pods")
		}
		if how == "by hand" || how == "flannel" {
			m.flannelDevice(i+1, 2-i)
		}
		if how == "flannel" {
			m.flannelRules(i + 1)
		}
		if proxy {
			m.run("nft '" + proxyHooks + "'")
		}
	}
	return from, near, far
}

// flannelDevice makes the tunnel to the other node, as flannel makes it.
func (m *machine) flannelDevice(own, other int) {
	m.run(fmt.Sprintf(`ip link add flannel.1 mtu 1400 address 02:00:00:00:00:0%[1]d type vxlan id 1 dstport 8472 local 192.0.2.%[1]d nolearning; ip link set flannel.1 up
		ip addr add 10.244.%[1]d.0/32 dev flannel.1; ip route del 10.244.%[2]d.0/24; ip route add 10.244.%[2]d.0/24 via 10.244.%[2]d.0 dev flannel.1 onlink
		ip neigh add 10.244.%[2]d.0 lladdr 02:00:00:00:00:0%[2]d dev flannel.1 nud permanent; bridge fdb add 02:00:00:00:00:0%[2]d dev flannel.1 dst 192.0.2.%[2]d`, own, other))
}

// flannelRules decide what flannel's do with --ip-masq, which its manifests set: what is forwarded, and what is masqueraded.
func (m *machine) flannelRules(own int) {
	m.run(fmt.Sprintf(`nft 'table ip flannel {
		chain forward {
			type filter hook forward priority filter
			ip saddr 10.244.0.0/16 accept
			ip daddr 10.244.0.0/16 accept
		}
		chain postrouting {
			type nat hook postrouting priority srcnat
			ip saddr 10.244.%[1]d.0/24 ip daddr 10.244.0.0/16 return
			ip saddr 10.244.0.0/16 ip daddr 10.244.%[1]d.0/24 return
			ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		}
	}'`, own))
}

// bridges makes nodes of the reference plugins.
func (c *cluster) bridges(b *testing.B, mtu int, options string) {
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
				{"type":"bridge","bridge":"cni0","isDefaultGateway":true,%s"mtu":%d,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.%d.0/24"}]]}}]}`,
				options, mtu, m.config.StateDir, i+1), 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
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
	parts := map[string]podsParts{"unlimited": {}, "routes": {fragments: DefaultFragments}, "vxlan": {tunnel: true, fragments: DefaultFragments}, "wireguard": {encrypt: true, fragments: DefaultFragments}}
	for i, addr := range near.addrs {
		k := newTalk("rules", from, addr)
		took, one := map[string][]time.Duration{}, []byte{1}
		for range rounds {
			for _, how := range []string{"none", "unlimited", "routes", "vxlan", "wireguard"} {
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
