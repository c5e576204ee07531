package iptables

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// manyPorts is the Service i with so many ports of one protocol at its ClusterIP, from a first one on, each with
// one endpoint.
func manyPorts(i int, proto api.Proto, first, n int) *service.Entry {
	one := numbered(i, 1)
	e := &service.Entry{Name: one.Name}
	for k := range n {
		f := *one.Frontends[0]
		f.Addr, f.Proto = netip.AddrPortFrom(f.Addr.Addr(), uint16(first+k)), proto
		f.Service.Port = fmt.Sprint("p", f.Addr.Port(), "-", lower(proto))
		e.Frontends = append(e.Frontends, &f)
	}
	return e
}

// mixedPorts is a Service of ports in all kinds of shared chains: at a ClusterIP of each family, a
// load-balancer address with sources, and NodePorts; some without endpoints, some that pods alone reach.
func mixedPorts(rng *rand.Rand, n int) *service.Entry {
	e := &service.Entry{Name: numbered(1, 0).Name}
	protos := []api.Proto{api.TCP, api.UDP, api.SCTP}
	empty, drop := &service.Route{Action: service.Reject}, &service.Route{Action: service.Drop}
	for i, port := range rng.Perm(3000)[:n] {
		cluster := *manyPorts(1, protos[rng.IntN(3)], 1+port, 1).Frontends[0]
		v6 := cluster
		v6.Addr = netip.AddrPortFrom(netip.MustParseAddr("fd00:10:96::1"), cluster.Addr.Port())
		to6 := service.Endpoint{Addr: netip.MustParseAddrPort("[fd00:10:244::1]:80")}
		v6.Internal = &service.Route{Endpoints: []service.Endpoint{to6}, Masquerade: service.MasqueradeOffCluster}
		v6.External = v6.Internal
		lb, node := cluster, cluster
		lb.Addr, lb.ClusterIP, lb.LoadBalancer = netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), cluster.Addr.Port()), false, true
		lb.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		node.Addr, node.ClusterIP = netip.AddrPortFrom(netip.IPv4Unspecified(), 30000+cluster.Addr.Port()), false
		switch i % 4 {
		case 0:
			cluster.Internal, cluster.External = empty, empty
			v6.Internal, v6.External = empty, empty
		case 1:
			lb.External, node.External = drop, drop
		}
		e.Frontends = append(e.Frontends, &cluster, &v6, &lb, &node)
	}
	slices.SortFunc(e.Frontends, func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) })
	return e
}

// TestPortsInKernel: after each change, from few ports to very many and back, the kernel holds what a
// process that starts would write, which finds the table in it.
func TestPortsInKernel(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			testnet.Enter(t)
			rng := rand.New(rand.NewPCG(4, 0))
			b, d := cluster(20), open(t, v)
			for i, n := range []int{3, maxPorts, maxPorts + 1, 300, 290, maxPorts + 1, maxPorts, 0, 200} {
				e := mixedPorts(rng, n)
				b.Set(e)
				table := b.Table(settings())
				sync(t, d, table)
				holds(t, d, v, table, fmt.Sprint("change ", i))
				if n == 300 && v == NFT {
					sameState(t, "very many ports")
				}
				if n == 300 { // one port less and one changed: little is written
					fewer := &service.Entry{Name: e.Name, Frontends: slices.Clone(e.Frontends[4:])}
					turned := *fewer.Frontends[0]
					turned.Internal = &service.Route{Action: service.Drop}
					turned.External, fewer.Frontends[0] = turned.Internal, &turned
					b.Set(fewer)
					stats, err := d.Sync(t.Context(), b.Table(settings()))
					if err != nil {
						t.Fatal(err)
					}
					holds(t, d, v, b.Table(settings()), "a small change")
					if written := stats.Added + stats.Deleted; written > 40 {
						t.Errorf("one port less and one changed write %d rules", written)
					}
				}
			}
			if err := d.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err := d.newSnapshot().of(t.Context(), v, true); err != nil || len(s.chains) > 0 {
				t.Errorf("after cleanup there are %d chains, error %v", len(s.chains), err)
			}
		})
	}
}

// TestPortsShared: shared chains have one rule of a Service of very many ports at each address, and a port more or
// less writes no more than of a small Service.
func TestPortsShared(t *testing.T) {
	e := mixedPorts(rand.New(rand.NewPCG(5, 0)), 2000)
	table := service.NewTable(settings(), e.Frontends)
	d := &Datapath{cfg: Config{Mark: DefaultMark}, renderer: newRenderer(settings(), false)}
	groups := map[group][]*service.Frontend{}
	for _, f := range table.Sorted() {
		groups[groupOf(f)] = append(groups[groupOf(f)], f)
	}
	for _, is4 := range []bool{true, false} {
		l, entries := d.family(groups, is4, newCounts())
		for c, rules := range entries {
			most := portsOfChain * 3 // of three protocols
			if slices.Contains(constantNames(c.table), c.name) {
				most = 2 // a ClusterIP and a load balancer's address
			}
			if _, there := l.chains[c]; !there || len(rules) > most {
				t.Errorf("chain %v, which is there: %v, has %d rules, want at most %d", c, there, len(rules), most)
			}
		}
	}
}

// TestPortsPackets: connections reach each port of a Service that has very many, and no other; Explain shows the
// way of one port and nothing of others.
func TestPortsPackets(t *testing.T) {
	testnet.Enter(t)
	for _, command := range []string{"ip link set lo up", "ip route add local 10.128.0.0/9 dev lo", "ip route add 10.64.0.0/10 dev lo"} {
		other(t, command)
	}
	const first, n = 200, 700
	e := manyPorts(0, api.TCP, first, n)
	d := open(t, NFT)
	sync(t, d, service.NewTable(settings(), e.Frontends))
	at := e.Frontends[0].Internal.Endpoints[0].Addr
	l, err := net.Listen("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func(port int, timeout time.Duration) error {
		c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(e.Frontends[0].Addr.Addr(), uint16(port)).String(), timeout)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for _, port := range []int{first, 256, 257, 512, 513, 768, 769, first + n - 1} {
		if err := dial(port, 10*time.Second); err != nil {
			t.Error(err)
			continue
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
	}
	for _, port := range []int{first - 1, first + n} {
		if err := dial(port, 200*time.Millisecond); err == nil {
			t.Errorf("port %d, which the Service does not have, takes a connection", port)
		}
	}
	all, err := d.Explain(t.Context(), service.Key{Addr: netip.AddrPortFrom(e.Frontends[0].Addr.Addr(), 512), Proto: api.TCP})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range all {
		fmt.Fprintf(&text, "%s %s\n", o.Name, o.Text)
	}
	t.Logf("the way to port 512:\n%s", &text)
	for _, want := range []string{"--dport 257:512 -j KUBE-SVC-", "--dport 512 -j KUBE-SVC-", "DNAT --to-destination " + at.String()} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("%q is not there once", want)
		}
	}
	if len(all) > 8 {
		t.Errorf("%d rules are shown", len(all))
	}
}

// TestPortsWith: each port has one range, none begins at 0.
func TestPortsWith(t *testing.T) {
	for port := 1; port <= 0xffff; port++ {
		first, last := portsWith(uint16(port))
		if first == 0 || first > uint16(port) || last < uint16(port) || last-first >= portsOfChain || (first-1)%portsOfChain != 0 {
			t.Fatalf("port %d is in %d to %d", port, first, last)
		}
	}
}
