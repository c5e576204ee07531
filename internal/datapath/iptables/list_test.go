package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// longList returns a Service with the endpoints eps at its ClusterIP. With ports it has a NodePort too, whose external
// clients reach only this node's endpoints.
func longList(eps []service.Endpoint, ports bool) *service.Entry {
	e := numbered(2000, 0)
	f := e.Frontends[0]
	f.Internal.Endpoints = eps
	if ports {
		node := *f
		node.Addr, node.ClusterIP = netip.AddrPortFrom(netip.IPv4Unspecified(), 30080), false
		node.External = &service.Route{Local: true, Endpoints: slices.DeleteFunc(slices.Clone(eps), func(e service.Endpoint) bool { return !e.Local })}
		if len(node.External.Endpoints) == 0 {
			node.External = &service.Route{Action: service.Drop}
		}
		e.Frontends = []*service.Frontend{&node, f}
	}
	return e
}

// someOf returns each of n endpoints with a chance, sorted.
func someOf(rng *rand.Rand, n int, chance float64) (all []service.Endpoint) {
	for i := range n {
		if rng.Float64() < chance {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 80)
			all = append(all, service.Endpoint{Addr: at, Local: i%3 == 0})
		}
	}
	return all
}

// TestShares: each endpoint gets its share as exactly as 2^31sts allow, also in a list far above the limit of
// endpoints.
func TestShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for _, n := range []int{1, 2, 256, 5000, 20_000} {
		eps, total := someOf(rng, n, 1), 0.0
		for i := range eps {
			eps[i].Weight = uint16(1 + rng.IntN(5))
			total += float64(eps[i].Weight)
		}
		chains := newRenderer(settings(), false).render(true, longList(eps, false).Frontends).chains
		got, left := map[string]float64{}, 1.0
		for _, text := range chains[natChain(xtables.KubeSVC+hash(numbered(2000, 0).Frontends[0].Service, api.TCP))] {
			r := parse(text)
			if !strings.HasPrefix(r.jump, xtables.KubeSEP) {
				continue // it marks packets for masquerade
			}
			own := 1.0
			if _, p, ok := strings.Cut(r.matches, "--probability "); ok {
				own, _ = strconv.ParseFloat(p, 64)
			}
			_, to, _ := strings.Cut(r.comment, " -> ")
			got[to] += left * own
			left *= 1 - own
		}
		for _, e := range eps {
			if want := float64(e.Weight) / total; got[e.String()] < want*0.9999 || got[e.String()] > want*1.0001 {
				t.Fatalf("%d endpoints: %v has a share of %v, want %v", n, e, got[e.String()], want)
			}
		}
	}
}

// TestListInKernel: after each change, from few endpoints to many and back, a new process finds the table in the kernel
// and has nothing to write.
func TestListInKernel(t *testing.T) {
	for _, c := range []struct {
		Variant
		ports bool
	}{{NFT, false}, {NFT, true}, {Legacy, true}} {
		t.Run(fmt.Sprintf("%v, ports=%v", c.Variant, c.ports), func(t *testing.T) {
			testnet.Enter(t)
			rng := rand.New(rand.NewPCG(2, 0))
			b, d := service.NewBuilder(), open(t, c.Variant)
			for i, much := range []float64{1, 0.99, 0.95, 0.3, 1, 0.02, 0, 0.9, 0.5, 0.51, 0.5} {
				eps := someOf(rng, 600, much)
				if i > 8 { // one more, one less
					eps = someOf(rng, 300-i, 1)
				}
				e := longList(eps, c.ports)
				if len(eps) == 0 {
					e.Frontends = nil
				}
				b.Set(e)
				table := b.Table(settings())
				sync(t, d, table)
				holds(t, d, c.Variant, table, fmt.Sprint("change ", i))
			}
		})
	}
}

// holds checks that a new process finds the table in the kernel and has nothing to write.
func holds(t *testing.T, d *Datapath, v Variant, table *service.Table, when string) {
	t.Helper()
	d.nextRead = time.Time{} // it is time
	if drift, err := d.Check(t.Context()); err != nil || drift.Any() {
		t.Fatalf("%s: Check says %+v, error %v", when, drift, err)
	}
	next := open(t, v)
	if got, err := next.Adopt(t.Context()); err != nil || len(service.Diff(got.Table, table)) > 0 {
		t.Fatalf("%s: the next process finds %d differences, error %v", when, len(service.Diff(got.Table, table)), err)
	}
	if stats, err := next.Sync(t.Context(), table); err != nil || stats.Added+stats.Deleted > 0 {
		t.Fatalf("%s: the next process writes %d rules and removes %d, error %v", when, stats.Added, stats.Deleted, err)
	}
}

// manyPorts returns the Service i with n ports of one protocol at its ClusterIP, from first on. Each port has one
// endpoint.
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

// mixedPorts returns a Service with n ports in all kinds of shared chains: at a ClusterIP of each family, a
// load-balancer address with source ranges, and NodePorts. Some ports have no endpoints, and only pods reach some
// ports.
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

// TestPortsInKernel: after each change, from few ports to very many and back, a new process finds the table in the
// kernel and has nothing to write.
func TestPortsInKernel(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			testnet.Enter(t)
			rng := rand.New(rand.NewPCG(4, 0))
			b, d := cluster(20), open(t, v)
			for i, n := range []int{3, 64, 65, 300, 290, 0, 200} {
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
			if s, err := read.NewSnapshot(&d.reader).Of(t.Context(), v, true); err != nil || len(s.Chains) > 0 {
				t.Errorf("after cleanup there are %d chains, error %v", len(s.Chains), err)
			}
		})
	}
}
