package iptables

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// longList is a Service's frontends with some of very many endpoints: by its ClusterIP and, if ports, by a
// NodePort whose external clients get those of this node alone.
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

// someOf are endpoints, sorted, each there with a chance.
func someOf(rng *rand.Rand, n int, chance float64) (all []service.Endpoint) {
	for i := range n {
		if rng.Float64() < chance {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 80)
			all = append(all, service.Endpoint{Addr: at, Local: i%3 == 0})
		}
	}
	return all
}

// Each endpoint gets its share, to what 2^31sts allow, in one level and in two.
func TestPartsShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for _, n := range []int{maxWhole, maxWhole + 1, 5000, 20_000} {
		eps, total := someOf(rng, n, 1), 0.0
		for i := range eps {
			eps[i].Weight = uint16(1 + rng.IntN(5))
			total += float64(eps[i].Weight)
		}
		chains := newRenderer(settings(), false).render(true, member{fronts: longList(eps, false).Frontends}).chains
		var walk func(name string, chance float64, into map[string]float64)
		walk = func(name string, chance float64, into map[string]float64) {
			for _, text := range chains[chain{nat, name}] {
				r := parse(text)
				own := 1.0
				if _, p, ok := strings.Cut(r.matches, "--probability "); ok {
					own, _ = strconv.ParseFloat(p, 64)
				}
				switch {
				case r.jump == markMasq || r.jump == markOffCluster:
					continue
				case strings.HasPrefix(r.jump, sep):
					_, to, _ := strings.Cut(r.comment, " -> ")
					into[to] += chance * own
				default:
					walk(r.jump, chance*own, into)
				}
				chance *= 1 - own
			}
		}
		got := map[string]float64{}
		walk(svc+hash(numbered(2000, 0).Frontends[0].Service, api.TCP), 1, got)
		for _, e := range eps {
			if want := float64(e.Weight) / total; got[e.String()] < want*0.9999 || got[e.String()] > want*1.0001 {
				t.Fatalf("%d endpoints: %v has a share of %v, want %v", n, e, got[e.String()], want)
			}
		}
	}
}

// A change of one endpoint writes a part and the first level, however long the list, and renders little else.
func TestPartsChange(t *testing.T) {
	const n = 10_000
	eps := someOf(rand.New(rand.NewPCG(1, 0)), n, 1)
	was := longList(eps, false).Frontends
	for _, i := range []int{0, 1, n / 2, n - 1} {
		p, s := newRenderer(settings(), false), newScript()
		old, next := p.renderChange(true, member{fronts: was}, member{fronts: longList(slices.Delete(slices.Clone(eps), i, i+1), false).Frontends})
		s.change(old, next, nil)
		if rules := len(s.nat.rules); rules == 0 || rules > n/partSize*2+2*maxPart {
			t.Errorf("without endpoint %d, %d rules are written", i, rules)
		}
		if rendered := len(old.chains) + len(next.chains); rendered > 6*maxPart {
			t.Errorf("without endpoint %d, %d chains are rendered", i, rendered)
		}
	}
}

// After each change, from few endpoints to many and back, the kernel holds what a process that starts
// would write, which finds the table in it.
func TestPartsInKernel(t *testing.T) {
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
					eps = someOf(rng, maxWhole+10-i, 1)
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

// holds checks that the kernel holds what a process that starts would write, which finds the table in it.
func holds(t *testing.T, d *Datapath, v Variant, table *service.Table, when string) {
	t.Helper()
	d.verify = time.Time{} // it is time
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

// Connections reach the endpoints of a list of two levels, and no others.
func TestPartsPackets(t *testing.T) {
	testnet.Enter(t)
	for _, command := range []string{"ip link set lo up", "ip route add local 10.200.0.0/16 dev lo", "ip route add 10.64.0.0/10 dev lo"} {
		other(t, command)
	}
	eps := someOf(rand.New(rand.NewPCG(3, 0)), 1000, 0.5)
	want := map[string]bool{}
	for _, e := range eps {
		want[e.Addr.String()] = true
	}
	e := longList(eps, false)
	sync(t, open(t, NFT), service.NewTable(settings(), e.Frontends))
	l, err := net.Listen("tcp4", "0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := map[string]int{}
	for range 500 {
		c, err := net.DialTimeout("tcp4", e.Frontends[0].Addr.String(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		reached[in.LocalAddr().String()]++
		_, _ = in.Close(), c.Close()
	}
	for at, n := range reached {
		if !want[at] || n > 20 {
			t.Errorf("%d of 500 connections reach %s", n, at)
		}
	}
	if len(reached) < len(eps)/2 { // 1 - 1/e of them, with 500 for each of 500
		t.Errorf("500 connections reach %d of %d endpoints", len(reached), len(eps))
	}
}
